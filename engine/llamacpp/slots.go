package llamacpp

import (
	"errors"
	"math"

	"github.com/tidwall/gjson"

	"headgate/engine/upstream"
)

// slots is what /slots says.
type slots struct {
	total      int // 0: nothing
	processing int
	context    int // tokens: the smallest n_ctx of a slot; 0: not said
	// kvUsed is the tokens that processing slots hold; -1: not said. What an
	// idle slot still holds is a cache, given up when the pool runs short, like
	// the unreferenced blocks that other engines count as free.
	kvUsed int
}

func parseSlots(body []byte) (slots, error) {
	list := gjson.ParseBytes(body)
	if !gjson.ValidBytes(body) || !list.IsArray() {
		return slots{}, errors.New("slots: want an array")
	}
	s := slots{}
	said := true
	for _, slot := range list.Array() {
		s.total++
		processing := slot.Get("is_processing").Bool()
		if processing {
			s.processing++
		}
		if n := upstream.Number(slot.Get("n_ctx")); n > 0 && (s.context == 0 || n < s.context) {
			s.context = n
		}
		tokens := upstream.Number(slot.Get("n_prompt_tokens"))
		if tokens < 0 {
			said = said && !processing // older builds leave it out
			continue
		}
		if processing {
			s.kvUsed = min(s.kvUsed+tokens, math.MaxInt32)
		}
	}
	if !said {
		s.kvUsed = -1
	}
	return s, nil
}

// pool is the KV that the slots share or divide.
type pool struct {
	tokens  int // 0: not known
	unified bool
}

// pool infers what no document says. With one unified pool (the default) every
// slot is told the whole context; with a divided one (an explicit number of
// slots) each is told its part, and the pool is as many times as large. From
// outside the two look the same, so a server with several slots is taken for
// unified, which at worst lends less than there is: to take a unified pool for a
// divided one would over-commit it, and llama-server then ends every running
// request. Slots that together hold more than one's context would be no proof of
// a divided pool, since the sequences of one request share cells. The
// configuration can say what is true (kv_tokens, kv_exhaustion_fatal).
//
// A single slot stops at its context with finish reason length and harms nobody.
func (s slots) pool() pool {
	switch {
	case s.total == 0 || s.context == 0:
		return pool{}
	case s.total == 1:
		return pool{tokens: s.context}
	}
	return pool{tokens: s.context, unified: true}
}
