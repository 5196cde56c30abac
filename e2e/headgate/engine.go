package headgate

import "testing"

// Engine is a running `headgate engine`.
type Engine struct {
	*process
	URL   string // without a trailing slash
	Model string // the id to ask for
}

// StartEngine runs the simulated engine until the test ends, at a free port
// unless args have another --listen.
func StartEngine(t testing.TB, args ...string) *Engine {
	t.Helper()
	e := &Engine{process: start(t, append([]string{"engine", "--listen", "127.0.0.1:0"}, args...)...)}
	said := e.AwaitOutput(`^(\S+) on (http://\S+)$`)
	e.Model, e.URL = said[1], said[2]
	return e
}
