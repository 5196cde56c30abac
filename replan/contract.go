package replan

import (
	"fmt"
	"time"
)

// Contract is the ledger of what sessions were promised of context. Every profile
// gives the guarantee, and a session that needs more says so, or shows it by what its
// requests come to. From then on, and as long as it lives, the engine is in a profile
// that gives it that. It is not safe for concurrent use.
//
// A promise is made when a request of the session begins in a profile that keeps it,
// not when it is asked for: until then there is only a request that waits for a profile.
// So a promise is never owed by a profile that the engine is not in.
//
// A full ledger makes no new promise, and forgets none that was made.
type Contract struct {
	guarantee int64 // tokens
	most      int
	timeout   time.Duration
	sessions  map[uint64]*session
	order     []*session // by last use, oldest first
	refused   uint64
}

type session struct {
	key    uint64
	tokens int64 // promised; 0: the guarantee
	open   int   // requests that run
	used   Time  // when one last began or ended
}

// NewContract returns an empty ledger for at most so many promises. guarantee is the
// context that every profile gives, in tokens, and timeout how long a session lives after
// its last request.
func NewContract(guarantee int64, most int, timeout time.Duration) *Contract {
	if guarantee < 1 || most < 1 || timeout <= 0 {
		panic(fmt.Sprintf("replan: a contract of %d tokens for %d sessions and %s: each must be at least 1", guarantee, most, timeout))
	}
	return &Contract{guarantee: guarantee, most: most, timeout: timeout, sessions: map[uint64]*session{}}
}

// Guarantee is the context, in tokens, that every session has.
func (c *Contract) Guarantee() int64 { return c.guarantee }

// Begin notes that a request of a session begins, for which it wants a context of so many
// tokens, 0 for what it has. present is what the profile gives that the request begins in.
// It returns the context that the session has as long as it lives, and whether there is a
// promise, which lives while the request runs.
func (c *Contract) Begin(now Time, key uint64, want, present int64) (granted int64, counted bool) {
	s := c.sessions[key]
	if s != nil && !c.lives(now, s) {
		c.drop(s)
		s = nil
	}
	want = min(want, present)
	switch {
	case s == nil && want <= c.guarantee:
		return c.guarantee, false
	case s == nil:
		if s = c.enter(now, key); s == nil {
			c.refused++
			return c.guarantee, false
		}
	}
	s.tokens = max(s.tokens, want)
	s.open++
	c.touch(now, s)
	return max(s.tokens, c.guarantee), true
}

// End notes that a request of a session has ended, whose context came to so many tokens,
// in a profile that gives present; counted is what Begin said of it. A session that was not promised that much has it from
// now on: its next request will be longer.
func (c *Contract) End(now Time, key uint64, counted bool, came, present int64) {
	s := c.sessions[key]
	came = min(came, present)
	if s == nil {
		if came <= c.guarantee {
			return
		}
		if s = c.enter(now, key); s == nil {
			c.refused++
			return
		}
	} else if counted {
		s.open = max(s.open-1, 0)
	}
	s.tokens = max(s.tokens, came)
	c.touch(now, s)
}

// Release ends a session's promise, as its client asks.
func (c *Contract) Release(key uint64) {
	if s := c.sessions[key]; s != nil {
		c.drop(s)
	}
}

// Needs is the largest context that a live session was promised, in tokens; the guarantee if
// none was promised more.
func (c *Contract) Needs(now Time) int64 {
	c.expire(now)
	most := c.guarantee
	for _, s := range c.order {
		most = max(most, s.tokens)
	}
	return most
}

// Of is what a live session was promised, in tokens; the guarantee if that is nothing else.
func (c *Contract) Of(now Time, key uint64) int64 {
	if s := c.sessions[key]; s != nil && c.lives(now, s) {
		return max(s.tokens, c.guarantee)
	}
	return c.guarantee
}

// Live is how many live sessions were promised more than the guarantee, and Refused how
// many promises a full ledger has not made.
func (c *Contract) Live(now Time) (live int, refused uint64) {
	c.expire(now)
	return len(c.order), c.refused
}

// Next is when the first promise will end by itself if nothing comes; Never if none will.
func (c *Contract) Next() Time {
	at := Never
	for _, s := range c.order {
		if s.open == 0 {
			return s.used + Time(c.timeout)
		}
	}
	return at
}

func (c *Contract) lives(now Time, s *session) bool {
	return s.open > 0 || now < s.used+Time(c.timeout)
}

// enter makes a place for a session; nil: there is none.
func (c *Contract) enter(now Time, key uint64) *session {
	if len(c.order) >= c.most {
		c.expire(now)
	}
	if len(c.order) >= c.most {
		return nil
	}
	s := &session{key: key}
	c.sessions[key] = s
	c.order = append(c.order, s)
	return s
}

func (c *Contract) expire(now Time) {
	kept := c.order[:0]
	for _, s := range c.order {
		if c.lives(now, s) {
			kept = append(kept, s)
		} else {
			delete(c.sessions, s.key)
		}
	}
	clear(c.order[len(kept):])
	c.order = kept
}

func (c *Contract) drop(s *session) {
	delete(c.sessions, s.key)
	for i, o := range c.order {
		if o == s {
			c.order = append(c.order[:i], c.order[i+1:]...)
			return
		}
	}
}

// touch moves a session to the end of the order.
func (c *Contract) touch(now Time, s *session) {
	s.used = now
	for i, o := range c.order {
		if o == s {
			copy(c.order[i:], c.order[i+1:])
			c.order[len(c.order)-1] = s
			return
		}
	}
}

// String shows the sessions in the order of their last use.
func (c *Contract) String() string {
	text := fmt.Sprintf("guarantee %d, %d of %d promises", c.guarantee, len(c.order), c.most)
	for _, s := range c.order {
		text += fmt.Sprintf("\nsession %d: %d tokens, %d running, last used at %s", s.key, s.tokens, s.open, time.Duration(s.used))
	}
	return text
}
