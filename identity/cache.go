package identity

import (
	"sync"
	"time"
)

// cache has the principals of credentials that were verified, by their digests. It is
// bounded: of two halves the young one becomes the old one once it is full, and what the
// old one then still has goes. What is used goes back into the young one, so that
// what is in use stays, at the cost of one map access and without a list to keep.
type cache struct {
	mu         sync.Mutex
	young, old map[digest]verified
}

type verified struct {
	principal *Principal
	until     time.Time
	current   func(now time.Time) bool // nil: as long as it lasts
}

// halfCache is how many entries a half has: with a principal each they take about 4 MB.
const halfCache = 8192

func (c *cache) get(d digest, now time.Time) *Principal {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.young[d]
	if !ok {
		if v, ok = c.old[d]; !ok {
			return nil
		}
		delete(c.old, d)
		c.putLocked(d, v)
	}
	if !now.Before(v.until) || v.current != nil && !v.current(now) {
		delete(c.young, d)
		return nil
	}
	return v.principal
}

func (c *cache) put(d digest, v verified) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(d, v)
}

func (c *cache) putLocked(d digest, v verified) {
	if len(c.young) >= halfCache || c.young == nil {
		c.old, c.young = c.young, map[digest]verified{}
	}
	c.young[d] = v
}

// tenants are the names that claims gave to tenants.
type tenants struct {
	mu    sync.Mutex
	names map[string]struct{}
}

// take tells whether there may be a tenant of that name.
func (t *tenants) take(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.names[name]; ok {
		return true
	}
	if len(t.names) >= MaxTenants {
		return false
	}
	if t.names == nil {
		t.names = map[string]struct{}{}
	}
	t.names[name] = struct{}{}
	return true
}
