package relay

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"time"

	"headgate/admission"
)

// An engine that caches prefixes answers sooner what begins like something it has
// computed. Where a pool has several, it is remembered which of them has last computed
// a prompt's beginnings, and the core is told with the offer; how much busier than
// another such an engine may be is the core's to say.
//
// What is remembered is hashes of the first 256 bytes of the prompt, 512, and so on to
// 64 KiB, as they stand in the body: so at least half of what two prompts share is found,
// nobody has to name anything, and nobody can claim what is not there. They are of one
// tenant and model, so that nobody learns from a wait what another has asked. A client
// that names a session gets nothing by it here: its turns begin alike.
//
// Alternatives: consistent hashing of a session's name needs no memory and moves half
// the sessions when an engine comes or goes, and trusts the name; a radix tree of all
// prompts, as SGLang's router has it, finds every shared token for the price of holding
// the prompts.

const (
	firstMark = 256      // bytes of the shortest beginning
	lastMark  = 64 << 10 // and of the longest
	maxMarks  = 1 << 15  // that a pool remembers, about 2 MB
	// markAge is for how long an engine is believed to have what it computed.
	markAge = 5 * time.Minute
	// maxSessions is how many sessions of a pool are told apart.
	maxSessions = 1 << 12
)

var seed = maphash.MakeSeed()

// trail returns the hashes of a prompt's beginnings, the shortest first; nil where
// nobody asks for them.
func (p *Pool) trail(call *Call) []uint64 {
	prompt := call.Request.Prompt()
	if len(p.live().Engines) < 2 || len(prompt) < firstMark {
		return nil
	}
	var h maphash.Hash
	h.SetSeed(seed)
	for _, s := range []string{call.Tenant, call.Request.Model} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // never fails
		_, _ = h.WriteString(s)
	}
	trail := make([]uint64, 0, bits.Len(lastMark/firstMark))
	for from, to := 0, firstMark; to <= min(len(prompt), lastMark); from, to = to, 2*to {
		_, _ = h.Write(prompt[from:to])
		trail = append(trail, h.Sum64())
	}
	return trail
}

// marks remember who has computed the beginnings of prompts. The oldest are
// forgotten.
type marks struct {
	of   map[uint64]mark
	ring []uint64 // in the order in which they came
	next int
}

type mark struct {
	engine admission.Engine
	epoch  uint32 // of the engine
	at     admission.Time
}

func (m *marks) put(key uint64, v mark) {
	if m.of == nil {
		m.of = map[uint64]mark{}
	}
	if _, known := m.of[key]; !known {
		if len(m.ring) < maxMarks {
			m.ring = append(m.ring, key)
		} else {
			delete(m.of, m.ring[m.next])
			m.ring[m.next] = key
			m.next = (m.next + 1) % maxMarks
		}
	}
	m.of[key] = v
}

// homeLocked returns the engine that has the longest beginning of a request's prompt
// in its cache, and of how many tokens; 0 tokens: none is known to.
func (p *Pool) homeLocked(r *record) (admission.Engine, int32) {
	now := p.now()
	for i := len(r.trail) - 1; i >= 0; i-- {
		m, ok := p.marks.of[r.trail[i]]
		if !ok || now-m.at > admission.Time(markAge) || m.epoch != p.engines[m.engine].epoch || !p.engines[m.engine].caps.PrefixCache {
			continue
		}
		// What lies behind the longest mark is not known to be alike.
		share := float64(int(firstMark)<<i) / float64(len(r.call.Request.Prompt()))
		return m.engine, int32(share * float64(r.prompt))
	}
	return 0, 0
}

// rememberLocked notes what an attempt has left in its engine's cache.
func (p *Pool) rememberLocked(a *attempt) {
	if a.out == 0 {
		return
	}
	m := mark{a.admit.Engine, p.engines[a.admit.Engine].epoch, p.now()}
	for _, key := range a.record.trail {
		p.marks.put(key, m)
	}
}

// numbers are the core's numbers of sessions, 1 to maxSessions. The session that was
// named first gives its number up to a new one: what the core keeps warm for a number
// ends with the next admission under it.
type numbers struct {
	of   map[uint64]uint32
	keys [maxSessions + 1]uint64
	last uint32
}

// numberLocked returns the number of the session that a request names, 0 for none,
// and where its class keeps none warm. A name is one tenant's.
func (p *Pool) numberLocked(r *record) uint32 {
	if r.call.Session == "" || p.table.Classes[r.class].KeepWarm == 0 {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(seed)
	_, _ = h.WriteString(r.call.Tenant)
	_ = h.WriteByte(0) // no name of a tenant has one
	_, _ = h.WriteString(r.call.Session)
	key, n := h.Sum64(), &p.numbers
	if number, ok := n.of[key]; ok {
		return number
	}
	if n.of == nil {
		n.of = map[uint64]uint32{}
	}
	n.last = n.last%maxSessions + 1
	delete(n.of, n.keys[n.last])
	n.keys[n.last], n.of[key] = key, n.last
	return n.last
}
