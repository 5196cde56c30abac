package kv

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits of what a file may say. They leave room above every public model, and
// keep what is computed from them in range.
const (
	maxLayers = 1024
	maxDim    = 1 << 20
	maxTokens = 1 << 30 // of a window or a context
)

// family is how the layers of a model_type are read.
type family func(r *reader) []Cache

// families are the model types that are understood.
var families = map[string]family{
	// A head's size and the number of KV heads may be left out where the model's
	// class derives them; where it has defaults of its own, they have to be there.
	"llama": attention{headsOptional: true}.read, "mistral": attention{window: always}.read,
	"mixtral": attention{window: always}.read, "qwen2": attention{window: flagged}.read,
	"qwen2_moe": attention{window: flagged}.read, "qwen2_vl": attention{window: flagged}.read,
	"qwen2_vl_text": attention{window: flagged}.read, "qwen2_5_vl": attention{window: flagged}.read,
	"qwen2_5_vl_text": attention{window: flagged}.read,
	"qwen3":           attention{window: flagged, headDimNeeded: true}.read, "qwen3_moe": attention{window: flagged}.read,
	"qwen3_vl_text": attention{headDimNeeded: true}.read, "qwen3_vl_moe_text": attention{headDimNeeded: true}.read,
	"gemma":        attention{headDimNeeded: true}.read,
	"gemma2":       attention{window: periodic, period: 2, headDimNeeded: true}.read,
	"gemma3_text":  attention{window: periodic, period: 6, class: "Gemma3TextConfig", heads: 8, kvHeads: 4, headDim: 256}.read,
	"gemma3n_text": attention{window: typed, headDimNeeded: true}.read, "gemma4_text": attention{window: typed, headDimNeeded: true}.read,
	"phi3": attention{window: always, headsOptional: true}.read, "gpt_oss": attention{window: periodic, period: 2, headDimNeeded: true}.read,
	"cohere": attention{headsOptional: true}.read, "cohere2": attention{window: periodic, period: 4, headsOptional: true}.read,
	"olmo2": attention{headsOptional: true}.read, "olmo3": attention{window: periodic, period: 4, headsOptional: true}.read,
	"starcoder2": attention{window: always}.read, "exaone4": attention{window: periodic}.read,
	"granite": attention{headsOptional: true}.read, "granitemoe": attention{headsOptional: true}.read,
	"glm4": attention{headDimNeeded: true}.read, "glm4_moe": attention{headDimNeeded: true}.read,
	"minimax_m2": attention{headDimNeeded: true}.read, "seed_oss": attention{headDimNeeded: true}.read,
	"smollm3": attention{}.read, "llama4_text": attention{window: chunked, period: 4, headDimNeeded: true}.read,
	"falcon": falcon,

	"deepseek_v2": latent, "deepseek_v3": latent, "deepseek_v32": latent, "kimi_k2": latent, "kimi_linear": kimiLinear,

	"qwen3_next": gatedDelta, "qwen3_5_text": gatedDelta, "qwen3_5_moe_text": gatedDelta,
	"jamba": jamba, "mamba": mamba1, "falcon_mamba": mamba1, "mamba2": mamba2,
	"granitemoehybrid": graniteHybrid, "bamba": bamba, "nemotron_h": nemotronH, "lfm2": lfm2,
}

// textOf is the model type of a nested text_config that does not say its own.
var textOf = map[string]string{
	"gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "llama4": "llama4_text",
	"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}

// cacheKeys change what a cache costs. One that is set and that the model type's
// family did not read is an error: the family is then not what it is taken for.
var cacheKeys = []string{
	"attention_chunk_size", "attn_layer_indices", "attn_layer_offset", "attn_layer_period", "attn_type_list", "block_configs",
	"cla_share_factor", "compress_ratio", "compress_ratios", "conv_L_cache", "cross_attention_layers",
	"full_attention_interval", "full_attn_idxs", "global_head_dim", "hybrid_layer_pattern", "hybrid_override_pattern",
	"index_head_dim", "index_topk", "index_topk_freq", "indexer_types", "kv_lora_rank", "layer_types", "layers_block_type",
	"linear_attn_config", "linear_num_value_heads", "mamba_d_state", "mamba_n_heads", "mamba_num_heads", "multi_query",
	"new_decoder_architecture", "no_rope_layers", "num_attention_groups", "num_global_key_value_heads", "num_kv_heads",
	"num_kv_shared_layers", "num_mem_blocks", "qk_rope_head_dim", "sliding_window", "sliding_window_pattern",
	"ssm_state_size", "state_size", "swa_head_dim", "swa_num_key_value_heads", "use_cla", "use_mla", "v_head_dim",
}

// ModelTypes are the model types that ReadConfig understands, sorted.
func ModelTypes() []string { return slices.Sorted(maps.Keys(families)) }

// ReadConfig makes a model of a config.json as Hugging Face's Transformers write
// it; of a model with several parts the text's counts. The error names the key,
// its value and what is allowed. With as the file is read as one of that model
// type, whatever it says it is.
func ReadConfig(data []byte, as string) (*Model, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return nil, fmt.Errorf("config.json is no JSON object: %w", err)
	}
	r := &reader{m: top, seen: map[string]bool{}}
	outer, _ := r.str("model_type")
	kind := outer
	if nested := r.object("text_config"); nested != nil {
		r.path, r.parent, r.m, r.seen = "text_config.", top, nested, map[string]bool{}
		if t, ok := r.str("model_type"); ok {
			kind = t
		} else if kind = textOf[outer]; kind == "" && as == "" && r.err == nil {
			return nil, fmt.Errorf("text_config.model_type is missing, and model_type %q has no text model that is known: give --as with one of %s", outer, strings.Join(ModelTypes(), ", "))
		}
		r.found("config", "text_config", "the text part of a "+outer+" model")
	}
	if r.err != nil {
		return nil, r.err
	}
	if as != "" {
		r.found("architecture", as, fmt.Sprintf("asked for; the file says %q", kind))
		kind = as
	} else {
		r.found("architecture", kind, r.path+"model_type")
	}
	read := families[kind]
	if read == nil {
		return nil, fmt.Errorf("%smodel_type is %q, which is not known; understood are %s", r.path, kind, strings.Join(ModelTypes(), ", "))
	}
	if r.flag("is_encoder_decoder") {
		r.fail("is_encoder_decoder", true, "false: encoders have caches of their own")
	}
	r.layers = r.need("num_hidden_layers", maxLayers)
	m := &Model{Architecture: kind, Layers: int(r.layers)}
	if r.err == nil {
		m.Caches = read(r)
	}
	m.MaxContext, _ = r.num("max_position_embeddings", maxTokens)
	for _, key := range []string{"dtype", "torch_dtype"} {
		if m.DType == "" {
			m.DType, _ = r.str(key)
		}
	}
	for _, key := range []string{"mamba_ssm_dtype", "mamba_ssm_cache_dtype"} {
		if m.StateDType == "" {
			m.StateDType, _ = r.str(key)
		}
	}
	m.KVDType = r.checkpointKV()
	for _, key := range cacheKeys {
		if !r.seen[key] && r.set(key) && r.err == nil {
			r.err = fmt.Errorf("%s%s is %s: it changes the cache, and model_type %s is not understood with it", r.path, key, short(r.m[key]), kind)
		}
	}
	if n, ok := r.num("num_nextn_predict_layers", maxLayers); ok && n > 0 {
		r.found("draft layers", fmt.Sprint(n), "num_nextn_predict_layers: not counted, they have a cache only while the engine speculates with them")
	}
	if n, ok := r.num("mtp_num_hidden_layers", maxLayers); ok && n > 0 {
		r.found("draft layers", fmt.Sprint(n), "mtp_num_hidden_layers: not counted, they have a cache only while the engine speculates with them")
	}
	if r.err != nil {
		return nil, r.err
	}
	m.Findings = r.findings
	return m, nil
}

// short is a value for an error.
func short(raw json.RawMessage) string {
	if s := string(raw); len(s) <= 60 {
		return s
	}
	return string(raw[:60]) + "..."
}

// reader reads keys of one JSON object. The first error stays.
type reader struct {
	path     string // of the object, with a dot at its end
	m        map[string]json.RawMessage
	parent   map[string]json.RawMessage // of a nested object, for dtype
	seen     map[string]bool
	layers   int64
	findings []Finding
	err      error
}

func (r *reader) found(what, value, how string) {
	r.findings = append(r.findings, Finding{what, value, how})
}

func (r *reader) fail(key string, value any, allowed string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s%s is %v: allowed: %s", r.path, key, value, allowed)
	}
}

func (r *reader) missing(key, allowed string) {
	if r.err == nil {
		r.err = fmt.Errorf("%s%s is missing: %s", r.path, key, allowed)
	}
}

// set tells whether a key has a value that says something.
func (r *reader) set(key string) bool {
	switch s := strings.Join(strings.Fields(string(r.m[key])), ""); s {
	case "", "null", "false", "0", "[]", "{}", `""`:
		return false
	}
	return true
}

// raw returns a key's value; a null is as good as none.
func (r *reader) raw(key string) (json.RawMessage, bool) {
	r.seen[key] = true
	v, ok := r.m[key]
	return v, ok && string(v) != "null"
}

func (r *reader) num(key string, most int64) (int64, bool) {
	raw, ok := r.raw(key)
	if !ok {
		return 0, false
	}
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil || n < 0 || n > most {
		r.fail(key, short(raw), fmt.Sprintf("an integer from 0 to %d", most))
		return 0, false
	}
	return n, true
}

// need is a number that has to be there, from 1.
func (r *reader) need(key string, most int64) int64 {
	n, ok := r.num(key, most)
	switch {
	case !ok:
		r.missing(key, "it has to be an integer from 1")
	case n == 0:
		r.fail(key, 0, fmt.Sprintf("an integer from 1 to %d", most))
	default:
		r.found(key, fmt.Sprint(n), "config.json")
		return n
	}
	return 1
}

// or is a number that may be left out.
func (r *reader) or(key string, absent int64, why string) int64 {
	n, ok := r.num(key, maxDim)
	if !ok {
		r.found(key, fmt.Sprint(absent), why)
		return absent
	}
	if n == 0 {
		r.fail(key, 0, fmt.Sprintf("an integer from 1 to %d", maxDim))
		return 1
	}
	r.found(key, fmt.Sprint(n), "config.json")
	return n
}

func (r *reader) str(key string) (string, bool) {
	raw, ok := r.raw(key)
	if !ok && r.parent != nil && strings.HasSuffix(key, "dtype") {
		raw, ok = r.parent[key]
		ok = ok && string(raw) != "null"
	}
	if !ok {
		return "", false
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		r.fail(key, short(raw), "a string")
		return "", false
	}
	return s, true
}

func (r *reader) flag(key string) bool {
	raw, ok := r.raw(key)
	var b bool
	if ok && json.Unmarshal(raw, &b) != nil {
		r.fail(key, short(raw), "true or false")
	}
	return b
}

func (r *reader) object(key string) map[string]json.RawMessage {
	raw, ok := r.raw(key)
	var o map[string]json.RawMessage
	if ok && json.Unmarshal(raw, &o) != nil {
		r.fail(key, short(raw), "an object")
	}
	return o
}

// list reads an array; one that is empty is as good as none.
func list[T any](r *reader, key, of string) []T {
	raw, ok := r.raw(key)
	var l []T
	if ok && json.Unmarshal(raw, &l) != nil {
		r.fail(key, short(raw), "an array of "+of)
	}
	return l
}

// checkpointKV is how the checkpoint itself wants its cache stored.
func (r *reader) checkpointKV() string {
	raw, ok := r.raw("quantization_config")
	if !ok && r.parent != nil {
		raw = r.parent["quantization_config"]
	}
	var q struct {
		Scheme json.RawMessage `json:"kv_cache_scheme"`
		Algo   string          `json:"kv_cache_quant_algo"`
	}
	if json.Unmarshal(raw, &q) != nil {
		return ""
	}
	if q.Algo != "" {
		return "quantization_config.kv_cache_quant_algo " + q.Algo
	}
	if len(q.Scheme) > 0 && string(q.Scheme) != "null" {
		return "quantization_config.kv_cache_scheme"
	}
	return ""
}

// each makes a cache for every layer.
func (r *reader) each(of func(layer int) []Cache) []Cache {
	var all []Cache
	if r.err != nil {
		return nil
	}
	for i := range int(r.layers) {
		for _, c := range of(i) {
			c.Layer = i
			all = append(all, c)
		}
	}
	return all
}

// types reads layer_types, a word for every layer.
func (r *reader) types(key string, words ...string) []string {
	l := list[string](r, key, "strings")
	if len(l) == 0 {
		return nil
	}
	if int64(len(l)) != r.layers {
		r.fail(key, fmt.Sprintf("%d long", len(l)), fmt.Sprintf("one for each of the %d layers", r.layers))
	}
	for i, t := range l {
		if !slices.Contains(words, t) {
			r.fail(fmt.Sprintf("%s[%d]", key, i), fmt.Sprintf("%q", t), strings.Join(words, ", "))
		}
	}
	r.found(key, counts(l), "config.json")
	return l
}

// counts tells how often each word is there.
func counts(words []string) string {
	n := map[string]int{}
	for _, w := range words {
		n[w]++
	}
	var parts []string
	for _, w := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%d %s", n[w], w))
	}
	return strings.Join(parts, ", ")
}

// window is how a family says which of its layers slide.
type window int

const (
	never    window = iota
	always          // every layer, if sliding_window is set
	flagged         // from max_window_layers on, if use_sliding_window is true
	periodic        // all but every period-th, counted from 1
	typed           // by layer_types only
	chunked         // all but every period-th attend to their chunk only
)

// attention is a family whose layers all have keys and values.
type attention struct {
	window        window
	period        int64
	headDimNeeded bool // its class has a default that is not hidden size / heads
	headsOptional bool // num_key_value_heads defaults to num_attention_heads

	// The defaults of the class, which public configs leave out.
	class                   string
	heads, kvHeads, headDim int64
}

func (a attention) read(r *reader) []Cache {
	full := Cache{Kind: Full}
	full.KVHeads, full.KeyDim = a.geometry(r)
	full.ValueDim = full.KeyDim
	slide := full
	slide.Kind = Sliding
	// Gemma 4's full layers have a shape of their own.
	if n, ok := r.num("global_head_dim", maxDim); ok && n > 0 {
		r.found("global_head_dim", fmt.Sprint(n), "config.json: the head size of full layers")
		full.KeyDim, full.ValueDim = n, n
	}
	if n, ok := r.num("num_global_key_value_heads", maxDim); ok && n > 0 {
		r.found("num_global_key_value_heads", fmt.Sprint(n), "config.json: the KV heads of full layers")
		full.KVHeads = n
	}
	slides := a.slides(r, &slide)
	shared, _ := r.num("num_kv_shared_layers", maxLayers)
	if shared > r.layers {
		r.fail("num_kv_shared_layers", shared, fmt.Sprintf("at most num_hidden_layers, %d", r.layers))
	}
	if shared > 0 {
		r.found("num_kv_shared_layers", fmt.Sprint(shared), "config.json: the last layers use caches of earlier ones")
	}
	return r.each(func(i int) []Cache {
		switch {
		case int64(i) >= r.layers-shared:
			return nil
		case slides(i):
			return []Cache{slide}
		}
		return []Cache{full}
	})
}

// geometry returns the KV heads and a head's size.
func (a attention) geometry(r *reader) (kvHeads, headDim int64) {
	var heads int64
	switch {
	case a.class != "":
		heads = r.or("num_attention_heads", a.heads, "the default of "+a.class)
		kvHeads = r.or("num_key_value_heads", a.kvHeads, "the default of "+a.class)
	case a.headsOptional:
		heads = r.need("num_attention_heads", maxDim)
		kvHeads = r.or("num_key_value_heads", heads, "as num_attention_heads, since it is not there")
	default:
		heads = r.need("num_attention_heads", maxDim)
		kvHeads = r.need("num_key_value_heads", maxDim)
	}
	if a.class != "" {
		return kvHeads, r.or("head_dim", a.headDim, "the default of "+a.class)
	}
	for _, key := range []string{"head_dim", "attention_head_dim"} { // the second is Nemotron-H's
		if n, ok := r.num(key, maxDim); ok && n > 0 {
			r.found(key, fmt.Sprint(n), "config.json")
			return kvHeads, n
		}
	}
	if a.headDimNeeded {
		r.missing("head_dim", "for this model type it is not hidden_size / num_attention_heads")
		return kvHeads, 1
	}
	return kvHeads, r.derivedHeadDim(heads)
}

func (r *reader) derivedHeadDim(heads int64) int64 {
	hidden := r.need("hidden_size", maxDim)
	if hidden%heads != 0 {
		r.fail("hidden_size", hidden, fmt.Sprintf("a multiple of num_attention_heads, %d, since head_dim is not there", heads))
		return 1
	}
	r.found("head_dim", fmt.Sprint(hidden/heads), fmt.Sprintf("hidden_size %d / num_attention_heads %d, since it is not there", hidden, heads))
	return hidden / heads
}

// slides tells of each layer whether it slides, and sets the window.
func (a attention) slides(r *reader, c *Cache) func(int) bool {
	var types []string
	none := func(int) bool { return false }
	types = r.types("layer_types", "full_attention", "sliding_attention", "chunked_attention")
	if types != nil {
		for _, key := range []string{"use_sliding_window", "sliding_window_pattern", "sliding_window", "attention_chunk_size", "no_rope_layers"} {
			r.seen[key] = true
		}
		key := "sliding_window"
		if slices.Contains(types, "chunked_attention") {
			key = "attention_chunk_size"
			if slices.Contains(types, "sliding_attention") {
				r.fail("layer_types", "with both sliding_attention and chunked_attention", "one of them")
			}
		}
		if key == "sliding_window" && !slices.Contains(types, "sliding_attention") {
			return none
		}
		c.Window = r.need(key, maxTokens)
		return func(i int) bool { return types[i] != "full_attention" }
	}
	switch a.window {
	case always:
		n, ok := r.num("sliding_window", maxTokens)
		if !ok || n == 0 {
			return none
		}
		r.found("sliding_window", fmt.Sprint(n), "config.json: every layer slides")
		c.Window = n
		return func(int) bool { return true }
	case flagged:
		r.seen["sliding_window"] = true
		if !r.flag("use_sliding_window") {
			return none
		}
		c.Window = r.need("sliding_window", maxTokens)
		from, ok := r.num("max_window_layers", maxLayers)
		if !ok {
			r.missing("max_window_layers", "it says from which layer on they slide")
		}
		r.found("max_window_layers", fmt.Sprint(from), "config.json: layers slide from there on")
		return func(i int) bool { return int64(i) >= from }
	case periodic:
		c.Window = r.need("sliding_window", maxTokens)
		period := a.period
		if raw, ok := r.raw("sliding_window_pattern"); ok {
			var letters string
			if json.Unmarshal(raw, &letters) == nil {
				if letters == "" || strings.Trim(letters, "LG") != "" {
					r.fail("sliding_window_pattern", short(raw), "a number, or L (local) and G (global) as they repeat")
					return none
				}
				r.found("sliding_window_pattern", letters, "config.json: L slides, G is full")
				return func(i int) bool { return letters[i%len(letters)] == 'L' }
			}
			period = r.need("sliding_window_pattern", maxLayers)
		} else if period == 0 {
			r.missing("sliding_window_pattern", "a number, or L (local) and G (global) as they repeat; or layer_types")
			return none
		} else {
			r.found("sliding_window_pattern", fmt.Sprint(period), "the default of the model type: the others slide")
		}
		return func(i int) bool { return (int64(i)+1)%period != 0 }
	case typed:
		r.missing("layer_types", "for this model type it says which layers slide")
	case chunked:
		c.Window = r.need("attention_chunk_size", maxTokens)
		rope := list[int64](r, "no_rope_layers", "0 and 1")
		if len(rope) == 0 {
			r.found("no_rope_layers", fmt.Sprintf("every %dth", a.period), "the default of the model type: the others attend to their chunk")
			return func(i int) bool { return (int64(i)+1)%a.period != 0 }
		}
		if int64(len(rope)) != r.layers {
			r.fail("no_rope_layers", fmt.Sprintf("%d long", len(rope)), fmt.Sprintf("one for each of the %d layers", r.layers))
			return none
		}
		return func(i int) bool { return rope[i] != 0 }
	}
	return none
}
