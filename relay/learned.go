package relay

import "headgate/wire"

// Learned returns what the pool has learned about prompts' tokens, for keeping
// across restarts.
func (p *Pool) Learned() []wire.Learned {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price.Snapshot()
}

// Restore has the pool price its first prompts by what another has learned. The
// error names a model of which that can't be right; then nothing is taken.
func (p *Pool) Restore(learned []wire.Learned) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.price.Restore(learned)
}
