package kv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
)

// head writes a GGUF head with keys and values in turn.
func head(pairs ...any) []byte {
	le := binary.LittleEndian
	b := []byte("GGUF\x03\x00\x00\x00")
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, uint64(len(pairs)/2))
	str := func(s string) { b = append(le.AppendUint64(b, uint64(len(s))), s...) }
	for i := 0; i < len(pairs); i += 2 {
		str(pairs[i].(string))
		switch v := pairs[i+1].(type) {
		case string:
			b = le.AppendUint32(b, 8)
			str(v)
		case int:
			b = le.AppendUint32(b, 4)
			b = le.AppendUint32(b, uint32(v))
		case float64:
			b = le.AppendUint32(b, 6)
			b = le.AppendUint32(b, math.Float32bits(float32(v)))
		case []int:
			b = le.AppendUint32(b, 9)
			b = le.AppendUint32(b, 5)
			b = le.AppendUint64(b, uint64(len(v)))
			for _, n := range v {
				b = le.AppendUint32(b, uint32(n))
			}
		case []string:
			b = le.AppendUint32(b, 9)
			b = le.AppendUint32(b, 8)
			b = le.AppendUint64(b, uint64(len(v)))
			for _, s := range v {
				str(s)
			}
		}
	}
	return b
}

var heads = map[string][]byte{
	"llama": head("general.architecture", "llama", "llama.rope.freq_base", 1e4, "tokenizer.ggml.tokens", []string{"a", "b"}, "llama.block_count", 32,
		"llama.embedding_length", 4096, "llama.attention.head_count", 32, "llama.attention.head_count_kv", 8, "llama.context_length", 131072),
	"gemma3": head("general.architecture", "gemma3", "gemma3.block_count", 62, "gemma3.attention.head_count", 32, "gemma3.attention.head_count_kv", 16,
		"gemma3.attention.key_length", 128, "gemma3.attention.value_length", 128, "gemma3.attention.sliding_window", 1024, "gemma3.context_length", 131072),
	"deepseek2": head("general.architecture", "deepseek2", "deepseek2.block_count", 61, "deepseek2.attention.kv_lora_rank", 512, "deepseek2.rope.dimension_count", 64,
		"deepseek2.attention.key_length_mla", 192, "deepseek2.context_length", 163840),
	"granitehybrid": head("general.architecture", "granitehybrid", "granitehybrid.block_count", 4, "granitehybrid.embedding_length", 1536, "granitehybrid.attention.head_count", 12,
		"granitehybrid.attention.head_count_kv", []int{0, 4, 0, 0}, "granitehybrid.ssm.inner_size", 3072, "granitehybrid.ssm.time_step_rank", 48, "granitehybrid.ssm.group_count", 1,
		"granitehybrid.ssm.state_size", 128, "granitehybrid.ssm.conv_kernel", 4, "granitehybrid.context_length", 131072),
	"qwen35": head("general.architecture", "qwen35", "qwen35.block_count", 64, "qwen35.attention.head_count", 24, "qwen35.attention.head_count_kv", 4, "qwen35.full_attention_interval", 4,
		"qwen35.attention.key_length", 256, "qwen35.attention.value_length", 256, "qwen35.ssm.inner_size", 6144, "qwen35.ssm.time_step_rank", 48, "qwen35.ssm.group_count", 16,
		"qwen35.ssm.state_size", 128, "qwen35.ssm.conv_kernel", 4, "qwen35.context_length", 262144),
}

// TestGGUF: a head says of a model what its config.json does.
func TestGGUF(t *testing.T) {
	for arch, config := range map[string]string{"llama": "llama-3.1-8b", "gemma3": "gemma-3-27b", "deepseek2": "deepseek-v3", "qwen35": "qwen3.5-27b"} {
		m, err := ReadGGUF(bytes.NewReader(heads[arch]))
		if err != nil {
			t.Fatal(err)
		}
		e := engine(t, LlamaServer, "-c 8192")
		a, err := Compute(Question{Model: m, Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		b := compute(t, config, LlamaServer, "-c 8192", Question{})
		if fmt.Sprint(a.Groups) != fmt.Sprint(b.Groups) || a.Allocated != b.Allocated {
			t.Errorf("%s: %v, of config.json %v", arch, a.Groups, b.Groups)
		}
	}
	m, err := ReadGGUF(bytes.NewReader(heads["granitehybrid"]))
	if err != nil || len(m.Caches) != 4 || m.Caches[1].Kind != Full || m.Caches[1].KeyDim != 128 || m.Caches[0].Kind != State {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestGGUFRefuses(t *testing.T) {
	for want, b := range map[string][]byte{
		"begins with": []byte("GGML0000000000000000000000"), "unexpected EOF": heads["llama"][:200], "version is 1": []byte("GGUF\x01\x00\x00\x00AAAAAAAAAAAAAAAA"),
		`general.architecture is "bert", which is not known; understood are cohere2`: head("general.architecture", "bert"),
		"llama.block_count is missing": head("general.architecture", "llama"),
		"llama.attention.head_count_kv is 1 long: allowed: one for each of the 2 layers": head("general.architecture", "llama", "llama.block_count", 2, "llama.attention.head_count_kv", []int{1}),
		"deepseek2.attention.indexer.head_count is 64: it changes the cache":             head("general.architecture", "deepseek2", "deepseek2.block_count", 1, "deepseek2.attention.kv_lora_rank", 8, "deepseek2.rope.dimension_count", 8, "deepseek2.attention.key_length_mla", 8, "deepseek2.attention.indexer.head_count", 64),
	} {
		if _, err := ReadGGUF(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func FuzzGGUF(f *testing.F) {
	for _, arch := range []string{"llama", "gemma3", "deepseek2", "granitehybrid", "qwen35"} {
		f.Add(heads[arch])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := ReadGGUF(bytes.NewReader(b)); err == nil {
			fuzzed(t, m)
		}
	})
}
