package kv

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Limits of a GGUF head: far above those of public files, so that a length that is
// no length ends the reading soon.
const (
	maxGGUFKeys  = 1 << 14
	maxGGUFName  = 1 << 12
	maxGGUFArray = 1 << 24 // numbers or strings, of a vocabulary
)

// ggufFamily is how the layers of a GGUF architecture are read.
type ggufFamily struct {
	period int64 // every so-manieth layer is full and the others slide, where the file gives a window; 0: none slides
	latent bool
	state  stateKind
}

type stateKind int

const (
	noState stateKind = iota
	ssm1
	ssm2
	delta
)

var ggufFamilies = map[string]ggufFamily{
	"llama": {}, "qwen2": {}, "qwen2moe": {}, "qwen2vl": {}, "qwen3": {}, "qwen3moe": {}, "gemma": {},
	"granite": {}, "granitemoe": {}, "glm4": {}, "glm4moe": {}, "starcoder2": {}, "olmo2": {}, "minimax-m2": {},
	"gemma2": {period: 2}, "gemma3": {period: 6}, "gpt-oss": {period: 2}, "cohere2": {period: 4},
	"deepseek2": {latent: true},
	"mamba":     {state: ssm1}, "jamba": {state: ssm1}, "mamba2": {state: ssm2}, "granitehybrid": {state: ssm2}, "nemotron_h": {state: ssm2},
	"qwen3next": {state: delta}, "qwen35": {state: delta}, "qwen35moe": {state: delta},
}

// ReadGGUF makes a model of the head of a GGUF file. Tensors are not read. The
// error names the key, its value and what is allowed.
func ReadGGUF(file io.Reader) (*Model, error) {
	g := &gguf{r: bufio.NewReader(file), said: map[string]any{}}
	if err := g.head(); err != nil {
		return nil, fmt.Errorf("GGUF head: %w", err)
	}
	arch, _ := g.said["general.architecture"].(string)
	f, known := ggufFamilies[arch]
	if !known {
		return nil, fmt.Errorf("general.architecture is %q, which is not known; understood are %s", arch, strings.Join(slices.Sorted(maps.Keys(ggufFamilies)), ", "))
	}
	g.arch = arch
	g.found("architecture", arch, "general.architecture")
	n := g.need("block_count", maxLayers)
	m := &Model{Architecture: arch, Layers: int(n)}
	if g.err == nil {
		m.Caches = g.caches(f, int(n))
	}
	m.MaxContext = g.or("context_length", 0, maxTokens)
	for _, key := range []string{"attention.indexer.head_count", "nextn_predict_layers", "attention.shared_kv_layers", "attention.key_length_swa"} {
		if v, ok := g.said[arch+"."+key]; ok && v != int64(0) && g.err == nil {
			g.err = fmt.Errorf("%s.%s is %v: it changes the cache, and is not understood", arch, key, v)
		}
	}
	if g.err != nil {
		return nil, g.err
	}
	m.Findings = g.findings
	return m, nil
}

// gguf is a head while it is read. The first error stays.
type gguf struct {
	r        *bufio.Reader
	said     map[string]any // int64, float64, bool, string, []int64
	arch     string
	findings []Finding
	err      error
}

func (g *gguf) found(what, value, how string) {
	g.findings = append(g.findings, Finding{what, value, how})
}

func (g *gguf) head() error {
	if magic := string(g.raw(4)); g.err == nil && magic != "GGUF" {
		return fmt.Errorf("it begins with %q, not with GGUF", magic)
	}
	if v := g.u32(); g.err == nil && v != 2 && v != 3 {
		return fmt.Errorf("version is %d: allowed are 2 and 3, little endian", v)
	}
	_ = g.u64() // tensors
	n := g.u64()
	if n > maxGGUFKeys {
		return fmt.Errorf("it has %d keys: allowed are %d", n, maxGGUFKeys)
	}
	for range n {
		key := g.str(maxGGUFName)
		v := g.value(g.u32(), key, false)
		if g.err != nil {
			break
		}
		if v != nil {
			g.said[key] = v
		}
	}
	if errors.Is(g.err, io.EOF) {
		g.err = io.ErrUnexpectedEOF
	}
	return g.err
}

func (g *gguf) raw(n int) []byte {
	b := make([]byte, n)
	if g.err == nil {
		_, g.err = io.ReadFull(g.r, b)
	}
	return b
}

func (g *gguf) u32() uint32 { return binary.LittleEndian.Uint32(g.raw(4)) }
func (g *gguf) u64() uint64 { return binary.LittleEndian.Uint64(g.raw(8)) }

func (g *gguf) str(most uint64) string {
	n := g.u64()
	if g.err == nil && n > most {
		g.err = fmt.Errorf("a name of %d bytes: allowed are %d", n, most)
	}
	if g.err != nil {
		return ""
	}
	return string(g.raw(int(n)))
}

// value reads one value. Of texts only short ones are kept, of arrays those of
// numbers that there may be one for each layer.
func (g *gguf) value(kind uint32, key string, element bool) any {
	switch kind {
	case 0, 7:
		v := g.raw(1)[0]
		if kind == 7 && !element {
			return v != 0
		}
		return int64(v)
	case 1:
		return int64(int8(g.raw(1)[0]))
	case 2:
		return int64(binary.LittleEndian.Uint16(g.raw(2)))
	case 3:
		return int64(int16(binary.LittleEndian.Uint16(g.raw(2))))
	case 4:
		return int64(g.u32())
	case 5:
		return int64(int32(g.u32()))
	case 6:
		return float64(math.Float32frombits(g.u32()))
	case 8:
		n := g.u64()
		if g.err != nil {
			return nil
		}
		if n <= maxGGUFName {
			return string(g.raw(int(n)))
		}
		g.skip(n)
		return nil
	case 9:
		return g.array(key, element)
	case 10:
		return int64(min(g.u64(), math.MaxInt64))
	case 11:
		return int64(g.u64())
	case 12:
		return math.Float64frombits(g.u64())
	}
	if g.err == nil {
		g.err = fmt.Errorf("%.80q has a value of type %d: allowed are 0 to 12", key, kind)
	}
	return nil
}

func (g *gguf) skip(n uint64) {
	if g.err == nil && n > 1<<40 {
		g.err = fmt.Errorf("a value of %d bytes", n)
	}
	if g.err == nil {
		_, g.err = io.CopyN(io.Discard, g.r, int64(n))
	}
}

func (g *gguf) array(key string, element bool) any {
	kind, n := g.u32(), g.u64()
	if g.err == nil && (element || kind == 9 || n > maxGGUFArray) {
		g.err = fmt.Errorf("%.80q is an array of %d values of type %d: allowed are %d, and none of arrays", key, n, kind, maxGGUFArray)
	}
	var numbers []int64
	for range n {
		v := g.value(kind, key, true)
		if g.err != nil {
			return nil
		}
		if x, ok := v.(int64); ok && n <= maxLayers {
			numbers = append(numbers, x)
		}
	}
	if uint64(len(numbers)) != n {
		return nil
	}
	return numbers
}

func (g *gguf) fail(key string, value any, allowed string) {
	if g.err == nil {
		g.err = fmt.Errorf("%s.%s is %v: allowed: %s", g.arch, key, value, allowed)
	}
}

// or is a number that may be left out.
func (g *gguf) or(key string, absent, most int64) int64 {
	v, ok := g.said[g.arch+"."+key]
	if !ok {
		return absent
	}
	n, ok := v.(int64)
	if !ok || n < 0 || n > most {
		g.fail(key, v, fmt.Sprintf("an integer from 0 to %d", most))
		return absent
	}
	return n
}

// need is one that has to be there, from 1.
func (g *gguf) need(key string, most int64) int64 {
	n := g.or(key, -1, most)
	if n < 1 {
		if g.err == nil && n < 0 {
			g.err = fmt.Errorf("%s.%s is missing: it has to be an integer from 1", g.arch, key)
		}
		g.fail(key, n, fmt.Sprintf("an integer from 1 to %d", most))
		return 1
	}
	g.found(key, fmt.Sprint(n), "GGUF")
	return n
}

// perLayer is a number for all layers, or one for each.
func (g *gguf) perLayer(key string, layers int) []int64 {
	v := g.said[g.arch+"."+key]
	l, ok := v.([]int64)
	if !ok {
		if v == nil {
			return nil
		}
		l = slices.Repeat([]int64{g.or(key, 0, maxDim)}, layers)
	}
	if len(l) != layers {
		g.fail(key, fmt.Sprintf("%d long", len(l)), fmt.Sprintf("one for each of the %d layers", layers))
		return nil
	}
	for _, n := range l {
		if n < 0 || n > maxDim {
			g.fail(key, n, fmt.Sprintf("integers from 0 to %d", maxDim))
			return nil
		}
	}
	g.found(key, fmt.Sprint(v), "GGUF")
	return l
}

func (g *gguf) caches(f ggufFamily, layers int) []Cache {
	if f.latent {
		return g.latent(layers)
	}
	var state Cache
	switch f.state {
	case ssm1:
		state = mamba1State(g.need("ssm.inner_size", maxDim), g.need("ssm.state_size", maxDim), g.need("ssm.conv_kernel", maxDim))
	case ssm2:
		inner, heads := g.inner()
		state = mamba2State(inner, g.need("ssm.group_count", maxDim), g.need("ssm.state_size", maxDim), g.need("ssm.conv_kernel", maxDim), heads, inner/heads)
	case delta:
		inner, heads := g.inner()
		dim := g.need("ssm.state_size", maxDim)
		state = deltaState(g.need("ssm.group_count", maxDim), dim, heads, inner/heads, g.need("ssm.conv_kernel", maxDim))
	}
	kvHeads := g.perLayer("attention.head_count_kv", layers)
	if _, one := g.said[g.arch+".attention.head_count_kv"].(int64); one && f.state == delta {
		every := g.need("full_attention_interval", maxLayers)
		for i := range kvHeads {
			if (int64(i)+1)%every != 0 {
				kvHeads[i] = 0
			}
		}
	}
	full := Cache{Kind: Full}
	attends := slices.ContainsFunc(kvHeads, func(n int64) bool { return n > 0 })
	if attends {
		g.dims(&full, layers)
	} else if f.state == noState {
		kvHeads = g.perLayer("attention.head_count", layers)
		if kvHeads == nil {
			g.need("attention.head_count", maxDim)
		}
		g.found("attention.head_count_kv", "as head_count", "it is not there")
		g.dims(&full, layers)
	}
	window := g.or("attention.sliding_window", 0, maxTokens)
	if window > 0 && f.period == 0 && f.state != noState {
		g.fail("attention.sliding_window", window, "none in this architecture")
	}
	if window > 0 && f.period > 0 {
		g.found("attention.sliding_window", fmt.Sprint(window), fmt.Sprintf("GGUF: all layers slide but every %dth, as llama.cpp has it for %s", f.period, g.arch))
	} else if window > 0 {
		g.found("attention.sliding_window", fmt.Sprint(window), fmt.Sprintf("not used: llama.cpp slides no layer of %s", g.arch))
	}
	var all []Cache
	for i := range layers {
		c := full
		switch {
		case i < len(kvHeads) && kvHeads[i] > 0:
			c.KVHeads = kvHeads[i]
			if window > 0 && f.period > 0 && (int64(i)+1)%f.period != 0 {
				c.Kind, c.Window = Sliding, window
			}
		case f.state == noState:
			continue // a layer without attention
		case g.arch == "nemotron_h" && g.feedForward(i, layers):
			continue
		default:
			c = state
		}
		c.Layer = i
		all = append(all, c)
	}
	return all
}

// inner returns the channels of a state-space layer, a multiple of its heads.
func (g *gguf) inner() (inner, heads int64) {
	inner, heads = g.need("ssm.inner_size", maxDim), g.need("ssm.time_step_rank", maxDim)
	if inner%heads != 0 {
		g.fail("ssm.inner_size", inner, fmt.Sprintf("a multiple of ssm.time_step_rank, %d", heads))
	}
	return inner, heads
}

// feedForward tells of a Nemotron-H layer without KV heads whether it is one of
// neither attention nor state.
func (g *gguf) feedForward(i, layers int) bool {
	l, ok := g.said[g.arch+".feed_forward_length"].([]int64)
	if !ok || len(l) != layers {
		g.fail("feed_forward_length", g.said[g.arch+".feed_forward_length"], "one for each layer: it says which have no state")
		return false
	}
	return l[i] > 0
}

// dims reads the sizes of a head.
func (g *gguf) dims(c *Cache, layers int) {
	k, v := g.or("attention.key_length", 0, maxDim), g.or("attention.value_length", 0, maxDim)
	how := "GGUF"
	if k == 0 || v == 0 {
		heads := g.perLayer("attention.head_count", layers)
		if heads == nil {
			g.need("attention.head_count", maxDim)
			return
		}
		embd, most := g.need("embedding_length", maxDim), slices.Max(heads)
		if most == 0 || embd%most != 0 {
			g.fail("embedding_length", embd, fmt.Sprintf("a multiple of attention.head_count, %d", most))
			return
		}
		how = fmt.Sprintf("embedding_length %d / attention.head_count %d", embd, most)
		k, v = embd/most, embd/most
	}
	g.found("head sizes", fmt.Sprintf("%d and %d", k, v), how)
	c.KeyDim, c.ValueDim = k, v
}

// latent reads DeepSeek's. llama.cpp stores the compressed row where the file has
// the sizes for it, else whole keys and values for every head.
func (g *gguf) latent(layers int) []Cache {
	rank, rope := g.need("attention.kv_lora_rank", maxDim), g.need("rope.dimension_count", maxDim)
	c := Cache{Kind: Latent, Width: rank + rope}
	if g.or("attention.key_length_mla", 0, maxDim) == 0 {
		c = Cache{Kind: Full, KVHeads: g.need("attention.head_count", maxDim), KeyDim: g.need("attention.key_length", maxDim), ValueDim: g.need("attention.value_length", maxDim)}
		g.found("latent attention", "not used", "the file has no attention.key_length_mla: llama.cpp then stores whole keys and values")
	}
	var all []Cache
	for i := range layers {
		c.Layer = i
		all = append(all, c)
	}
	return all
}
