package relay

import (
	"hash/fnv"

	"headgate/admission"
)

// mostTenants is how many tenants a pool tells apart in its queues: the core keeps a line
// of each that it has ever seen.
const mostTenants = 1 << 17

// tenantLocked is the core's number of a tenant. Beyond the bound a tenant has that of
// another, whose turns in the queue it shares; its limits are its own all the same.
func (p *Pool) tenantLocked(name string) admission.Tenant {
	if t, ok := p.tenants[name]; ok {
		return t
	}
	if len(p.tenants) >= mostTenants {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name)) // never fails
		return admission.Tenant(h.Sum32() % mostTenants)
	}
	t := admission.Tenant(len(p.tenants))
	p.tenants[name] = t
	return t
}
