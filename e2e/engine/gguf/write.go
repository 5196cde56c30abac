package gguf

import (
	"fmt"
	"io"
	"math"
)

// chatTemplate is what llama-server renders messages with, and has to agree with
// engine/prompt.mjs. It consists of words, so that it costs few tokens, and does
// not end in a space, so that an answer is continued by appending its text.
const chatTemplate = `{% for m in messages %}{{ m['role'] + ' says ' + (m['content'] | trim) + ' . ' }}{% endfor %}` +
	`{% if add_generation_prompt %}{{ 'assistant says' }}{% endif %}`

const (
	// embedStd is the deviation of an embedding's noise. Next to the constant 1
	// of dimension 0 it leaves both about half of the vector's length.
	embedStd = 0.05
	// logitStd is the deviation of a word's logit: the greedy choice is then well
	// apart from the next best, and at temperature 1 all words still occur.
	logitStd = 1.0
	// selfLogit is added to a word's logit right after that word: without it greedy
	// answers end up repeating one word for ever.
	selfLogit = -6.0
	// silence is the logit of what must never be generated.
	silence = -30.0
	// attentionStd is the deviation of an attention score before the softmax:
	// peaky enough that a long history does not average out.
	attentionStd = 1.5
	// historyGain and mixGain say how much attention and feed-forward add to the
	// residual stream over all layers, in units of embedStd.
	historyGain = 2.0
	mixGain     = 0.3
)

// Write writes the model that o describes. It returns w's error, or one that
// names the field of o that is not allowed.
func Write(w io.Writer, o Options) error {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return err
	}
	v := newVocab()
	tensors := o.tensors(v)

	e := newEncoder(w)
	e.bytes([]byte("GGUF"))
	e.u32(3)
	e.u64(uint64(len(tensors)))
	meta := o.metadata(v)
	e.u64(uint64(len(meta)))
	for _, m := range meta {
		e.str(m.key)
		e.value(m.value)
	}
	var offset uint64
	for i := range tensors {
		t := &tensors[i]
		e.str(t.name)
		if t.rows == 1 {
			e.u32(1)
			e.u64(uint64(t.cols))
		} else {
			e.u32(2)
			e.u64(uint64(t.cols))
			e.u64(uint64(t.rows))
		}
		e.u32(t.typ)
		e.u64(offset)
		offset += (t.bytes() + alignment - 1) / alignment * alignment
	}
	e.pad()
	var row []byte
	for i := range tensors {
		t := &tensors[i]
		for r := range t.rows {
			row = t.encode(row[:0], r)
			e.bytes(row)
		}
		e.pad()
	}
	if err := e.flush(); err != nil {
		return fmt.Errorf("gguf: write %s: %w", o.Name, err)
	}
	return nil
}

type entry struct {
	key   string
	value any
}

func (o Options) metadata(v *vocab) []entry {
	fileType := uint32(7) // mostly q8_0
	if o.Exact {
		fileType = 0 // all f32
	}
	return []entry{
		{"general.architecture", "llama"},
		{"general.name", o.Name},
		{"general.file_type", fileType},
		{"general.quantization_version", uint32(2)},
		// llama-server's sampling defaults: the model's own distribution.
		{"general.sampling.temp", float32(1)},
		{"general.sampling.top_k", int32(0)},
		{"general.sampling.top_p", float32(1)},
		{"general.sampling.min_p", float32(0)},
		{"llama.context_length", uint32(o.Context)},
		{"llama.embedding_length", uint32(o.Width)},
		{"llama.block_count", uint32(o.Layers)},
		{"llama.feed_forward_length", uint32(o.FF)},
		{"llama.attention.head_count", uint32(o.Heads)},
		{"llama.attention.head_count_kv", uint32(o.KVHeads)},
		{"llama.attention.layer_norm_rms_epsilon", float32(1e-6)},
		{"llama.rope.dimension_count", uint32(o.Width / o.Heads)},
		{"llama.rope.freq_base", float32(10000)},
		{"llama.vocab_size", uint32(len(v.pieces))},
		{"tokenizer.ggml.model", "llama"},
		{"tokenizer.ggml.pre", "default"},
		{"tokenizer.ggml.tokens", v.pieces},
		{"tokenizer.ggml.scores", v.scores},
		{"tokenizer.ggml.token_type", v.types},
		{"tokenizer.ggml.bos_token_id", uint32(idBOS)},
		{"tokenizer.ggml.eos_token_id", uint32(idEOS)},
		{"tokenizer.ggml.unknown_token_id", uint32(idUnknown)},
		{"tokenizer.ggml.add_bos_token", true},
		{"tokenizer.ggml.add_eos_token", false},
		{"tokenizer.chat_template", chatTemplate},
	}
}

// tensors lists the weights, in file order, which is also the order in which
// their random stream is consumed.
//
// Deviations follow from the norms: a normalized vector has length sqrt(width),
// so a matrix of deviation d makes outputs of deviation d*sqrt(width).
func (o Options) tensors(v *vocab) []tensor {
	s := source(o.Seed)
	width := float64(o.Width)
	// Embeddings are needed twice, so each row has a stream of its own.
	embedding := func(id int, row []float32) {
		own := source(o.Seed ^ uint64(id+1)<<32)
		row[0] = 1
		for i := 1; i < len(row); i++ {
			row[i] = own.noise(embedStd)
		}
	}
	// After the final norm dimension 0 holds constant, and every other one
	// deviates by embedStd*constant. History makes the vector longer; taken into
	// account at half its gain, since attention averages.
	spread := embedStd * math.Sqrt(1+historyGain*historyGain/4)
	constant := 1 / math.Sqrt((1+(width-1)*spread*spread)/width)
	wordStd := round(logitStd / (spread * constant * math.Sqrt(width-1)))
	end := silence
	if o.Mean > 1 {
		// The words' share of the softmax is their number times the mean of a
		// log-normal; the end's share has to be 1/Mean.
		end = math.Log(float64(v.words()) * math.Exp(logitStd*logitStd/2) / (o.Mean - 1))
	}
	away := round(selfLogit / (embedStd * embedStd * (width - 1) * constant))
	endBias, silenceBias := round(end/constant), round(silence/constant)

	list := make([]tensor, 0, 3+9*o.Layers)
	list = append(list,
		full("token_embd.weight", o.Width, len(v.pieces), embedding),
		ones("output_norm.weight", o.Width),
		full("output.weight", o.Width, len(v.pieces), func(id int, row []float32) {
			switch {
			case v.word[id]:
				embedding(id, row)
				row[0] = 0
				for i := 1; i < len(row); i++ {
					row[i] = float32(row[i]*away) + s.noise(wordStd)
				}
			case id == idEOS:
				row[0] = endBias
			default:
				row[0] = silenceBias
			}
		}))

	perLayer := embedStd / math.Sqrt(float64(o.Layers))
	var (
		kv       = o.KVHeads * (o.Width / o.Heads)
		scoreStd = round(math.Sqrt(attentionStd / width))
		unitStd  = round(1 / math.Sqrt(width))
		backStd  = round(historyGain * perLayer / math.Sqrt(width))
		downStd  = round(mixGain * perLayer / math.Sqrt(float64(o.FF)))
	)
	matrix := quantized
	if o.Exact {
		matrix = random
	}
	for l := range o.Layers {
		name := func(part string) string { return fmt.Sprintf("blk.%d.%s.weight", l, part) }
		list = append(list,
			ones(name("attn_norm"), o.Width),
			matrix(&s, name("attn_q"), o.Width, o.Width, scoreStd, seesAll),
			matrix(&s, name("attn_k"), o.Width, kv, scoreStd, seesAll),
			// The constant would bring the same vector whatever the history.
			matrix(&s, name("attn_v"), o.Width, kv, unitStd, noCol0),
			matrix(&s, name("attn_output"), o.Width, o.Width, backStd, noRow0),
			ones(name("ffn_norm"), o.Width),
			matrix(&s, name("ffn_gate"), o.Width, o.FF, unitStd, seesAll),
			matrix(&s, name("ffn_up"), o.Width, o.FF, unitStd, seesAll),
			matrix(&s, name("ffn_down"), o.FF, o.Width, downStd, noRow0))
	}
	return list
}

// round drops the digits in which machines with and without a fused
// multiply-add may differ.
func round(x float64) float32 {
	return float32(math.Round(x*(1<<20)) / (1 << 20))
}
