package kv

import (
	"fmt"
	"slices"
	"strings"
)

// falcon says multi_query and num_kv_heads in its own way.
func falcon(r *reader) []Cache {
	heads := r.need("num_attention_heads", maxDim)
	c := Cache{Kind: Full, KVHeads: heads}
	switch {
	case r.flag("new_decoder_architecture"):
		r.seen["multi_query"] = true
		c.KVHeads = r.or("num_kv_heads", heads, "as num_attention_heads, since it is not there")
	case r.flag("multi_query"):
		r.seen["num_kv_heads"] = true
		c.KVHeads = 1
		r.found("num_key_value_heads", "1", "multi_query is true")
	default:
		r.found("num_key_value_heads", fmt.Sprint(heads), "multi_query is false: as num_attention_heads")
	}
	c.KeyDim = r.derivedHeadDim(heads)
	c.ValueDim = c.KeyDim
	return r.each(func(int) []Cache { return []Cache{c} })
}

// latentCache reads what multi-head latent attention stores.
func latentCache(r *reader) []Cache {
	rank, rope := r.need("kv_lora_rank", maxDim), r.need("qk_rope_head_dim", maxDim)
	r.seen["v_head_dim"] = true
	return []Cache{{Kind: Latent, Width: rank + rope}}
}

func latent(r *reader) []Cache {
	all := latentCache(r)
	if n, ok := r.num("index_head_dim", maxDim); ok && n > 0 {
		r.seen["index_topk"] = true
		if n%128 != 0 {
			r.fail("index_head_dim", n, "a multiple of 128, the numbers with one scale")
		}
		c := Cache{Kind: Index, Width: n + n/128*4}
		r.found("index_head_dim", fmt.Sprint(n), fmt.Sprintf("config.json: %d bytes a token and layer, fp8 with a scale of 4 bytes for 128", c.Width))
		all = append(all, c)
	}
	return r.each(func(int) []Cache { return all })
}

// mamba2State is one layer's: a convolution's last columns over the inner
// channels, and with them those of the groups' B and C where it covers them.
func mamba2State(inner, groups, state, conv, heads, headDim int64) Cache {
	return Cache{Kind: State, State: []Part{
		{Heads: inner, Each: conv - 1},
		{Heads: groups, Each: 2 * state * (conv - 1)},
		{Heads: heads, Each: headDim * state, Recurrent: true},
	}}
}

func mamba1State(inner, state, conv int64) Cache {
	return Cache{Kind: State, State: []Part{{Heads: inner, Each: conv - 1}, {Heads: inner, Each: state, Recurrent: true}}}
}

func mamba1(r *reader) []Cache {
	c := mamba1State(r.need("intermediate_size", maxDim), r.need("state_size", maxDim), r.need("conv_kernel", maxDim))
	return r.each(func(int) []Cache { return []Cache{c} })
}

func mamba2(r *reader) []Cache {
	heads, dim := r.need("num_heads", maxDim), r.need("head_dim", maxDim)
	c := mamba2State(r.inner(heads, dim), r.need("n_groups", maxDim), r.need("state_size", maxDim), r.need("conv_kernel", maxDim), heads, dim)
	return r.each(func(int) []Cache { return []Cache{c} })
}

// prefixedMamba2 reads the keys that have mamba_ before them.
func prefixedMamba2(r *reader) Cache {
	heads := r.need("mamba_n_heads", maxDim)
	var dim int64
	if raw, _ := r.raw("mamba_d_head"); string(raw) == `"auto"` {
		hidden, expand := r.need("hidden_size", maxDim), r.need("mamba_expand", 64)
		if dim = expand * hidden / heads; dim == 0 {
			r.fail("mamba_n_heads", heads, fmt.Sprintf("at most mamba_expand x hidden_size, %d", expand*hidden))
		}
		r.found("mamba_d_head", fmt.Sprint(dim), fmt.Sprintf("auto: mamba_expand %d x hidden_size %d / mamba_n_heads %d", expand, hidden, heads))
	} else {
		dim = r.need("mamba_d_head", maxDim)
	}
	return mamba2State(r.inner(heads, dim), r.need("mamba_n_groups", maxDim), r.need("mamba_d_state", maxDim), r.need("mamba_d_conv", maxDim), heads, dim)
}

// inner is the number of channels of a state-space layer.
func (r *reader) inner(heads, dim int64) int64 {
	if heads*dim > maxDim {
		r.fail("heads x head size of state-space layers", heads*dim, fmt.Sprintf("at most %d", maxDim))
	}
	return heads * dim
}

// fullCache is that of an attention layer between others.
func fullCache(r *reader, a attention) Cache {
	c := Cache{Kind: Full}
	c.KVHeads, c.KeyDim = a.geometry(r)
	c.ValueDim = c.KeyDim
	return c
}

func (r *reader) hybrid(full, other Cache, isFull func(int) bool) []Cache {
	return r.each(func(i int) []Cache {
		if isFull(i) {
			return []Cache{full}
		}
		return []Cache{other}
	})
}

func graniteHybrid(r *reader) []Cache {
	full := fullCache(r, attention{})
	types := r.types("layer_types", "mamba", "attention")
	if types == nil {
		r.missing("layer_types", "for this model type it says which layers are mamba and which attention")
		return nil
	}
	for _, key := range []string{"mamba_n_heads", "mamba_d_state"} {
		r.seen[key] = true // there in dense models too
	}
	var state Cache
	if slices.Contains(types, "mamba") {
		state = prefixedMamba2(r)
	}
	return r.hybrid(full, state, func(i int) bool { return types[i] == "attention" })
}

func bamba(r *reader) []Cache {
	full, state := fullCache(r, attention{}), prefixedMamba2(r)
	at := list[int64](r, "attn_layer_indices", "layers")
	for _, i := range at {
		if i < 0 || i >= r.layers {
			r.fail("attn_layer_indices", i, fmt.Sprintf("layers from 0 to %d", r.layers-1))
		}
	}
	r.found("attn_layer_indices", fmt.Sprintf("%d layers", len(at)), "config.json: the others are mamba")
	return r.hybrid(full, state, func(i int) bool { return slices.Contains(at, int64(i)) })
}

func jamba(r *reader) []Cache {
	full := fullCache(r, attention{})
	period, offset := r.need("attn_layer_period", maxLayers), int64(0)
	if n, ok := r.num("attn_layer_offset", maxLayers); ok && n < period {
		offset = n
	} else {
		r.missing("attn_layer_offset", fmt.Sprintf("it has to be an integer from 0 to attn_layer_period - 1, %d", period-1))
	}
	r.found("attn_layer_offset", fmt.Sprint(offset), "config.json")
	state := mamba1State(r.inner(r.need("mamba_expand", 64), r.need("hidden_size", maxDim)), r.need("mamba_d_state", maxDim), r.need("mamba_d_conv", maxDim))
	return r.hybrid(full, state, func(i int) bool { return int64(i)%period == offset })
}

// nemotronH has a letter for each layer: M mamba, * attention, - and E neither.
func nemotronH(r *reader) []Cache {
	full := fullCache(r, attention{})
	heads, dim := r.need("mamba_num_heads", maxDim), r.need("mamba_head_dim", maxDim)
	state := mamba2State(r.inner(heads, dim), r.need("n_groups", maxDim), r.need("ssm_state_size", maxDim), r.need("conv_kernel", maxDim), heads, dim)
	pattern, _ := r.str("hybrid_override_pattern")
	if int64(len(pattern)) != r.layers || strings.Trim(pattern, "M*-E") != "" {
		r.fail("hybrid_override_pattern", fmt.Sprintf("%.80q", pattern), fmt.Sprintf("M (mamba), * (attention), - and E (neither), one for each of the %d layers", r.layers))
		return nil
	}
	r.found("hybrid_override_pattern", fmt.Sprintf("%d mamba, %d attention", strings.Count(pattern, "M"), strings.Count(pattern, "*")), "config.json")
	return r.each(func(i int) []Cache {
		switch pattern[i] {
		case 'M':
			return []Cache{state}
		case '*':
			return []Cache{full}
		}
		return nil
	})
}

// deltaState is what a gated delta rule keeps: a matrix for each value head, and
// the convolution's last columns over queries, keys and values.
func deltaState(keyHeads, keyDim, valueHeads, valueDim, conv int64) Cache {
	return Cache{Kind: State, State: []Part{
		{Heads: keyHeads, Each: 2 * keyDim * (conv - 1)},
		{Heads: valueHeads, Each: valueDim * (conv - 1)},
		{Heads: valueHeads, Each: keyDim * valueDim, Recurrent: true},
	}}
}

func gatedDelta(r *reader) []Cache {
	full := fullCache(r, attention{headDimNeeded: true})
	state := deltaState(r.need("linear_num_key_heads", maxDim), r.need("linear_key_head_dim", maxDim),
		r.need("linear_num_value_heads", maxDim), r.need("linear_value_head_dim", maxDim), r.need("linear_conv_kernel_dim", maxDim))
	if types := r.types("layer_types", "full_attention", "linear_attention"); types != nil {
		r.seen["full_attention_interval"] = true
		return r.hybrid(full, state, func(i int) bool { return types[i] == "full_attention" })
	}
	every := r.need("full_attention_interval", maxLayers)
	return r.hybrid(full, state, func(i int) bool { return (int64(i)+1)%every == 0 })
}

// kimiLinear says by number, from 1, which layers have which attention.
func kimiLinear(r *reader) []Cache {
	full := latentCache(r)
	o := r.object("linear_attn_config")
	if o == nil {
		r.missing("linear_attn_config", "it has to be an object")
		return nil
	}
	l := &reader{path: r.path + "linear_attn_config.", m: o, seen: map[string]bool{}, layers: r.layers}
	heads, dim := l.need("num_heads", maxDim), l.need("head_dim", maxDim)
	state := deltaState(heads, dim, heads, dim, l.need("short_conv_kernel_size", maxDim))
	kda, attends := list[int64](l, "kda_layers", "layers from 1"), list[int64](l, "full_attn_layers", "layers from 1")
	for i := int64(1); i <= r.layers; i++ {
		if slices.Contains(kda, i) == slices.Contains(attends, i) {
			l.fail("kda_layers", fmt.Sprintf("%d layers", len(kda)), fmt.Sprintf("with full_attn_layers every layer from 1 to %d once: %d", r.layers, i))
		}
	}
	l.found("linear_attn_config", fmt.Sprintf("%d linear, %d full", len(kda), len(attends)), "config.json")
	r.findings = append(r.findings, l.findings...)
	if r.err == nil {
		r.err = l.err
	}
	return r.hybrid(full[0], state, func(i int) bool { return slices.Contains(attends, int64(i)+1) })
}

// lfm2 has short convolutions between attention layers.
func lfm2(r *reader) []Cache {
	full := fullCache(r, attention{})
	conv := r.need("conv_L_cache", maxDim)
	state := Cache{Kind: State, State: []Part{{Heads: r.need("hidden_size", maxDim), Each: conv - 1}}}
	if types := r.types("layer_types", "conv", "full_attention"); types != nil {
		r.seen["full_attn_idxs"] = true
		return r.hybrid(full, state, func(i int) bool { return types[i] == "full_attention" })
	}
	at := list[int64](r, "full_attn_idxs", "layers")
	if len(at) == 0 {
		r.missing("full_attn_idxs", "the attention layers, from 0; or layer_types")
	}
	r.found("full_attn_idxs", fmt.Sprintf("%d layers", len(at)), "config.json: the others are convolutions")
	return r.hybrid(full, state, func(i int) bool { return slices.Contains(at, int64(i)) })
}
