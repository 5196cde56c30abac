package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"headgate/identity"
)

// Address is where a gateway is to listen.
type Address struct {
	Key string // listen, admin.listen
	At  string // host:port
	// Ours tells whether it is a gateway that has it; nil: none does.
	Ours func() bool
}

// Check takes the address for a moment.
func (a Address) Check() Check {
	return Check{Of: a.Key, Run: func(ctx context.Context, r *Reporter) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", a.At)
		switch {
		case err == nil:
			_ = l.Close()
		case errors.Is(err, syscall.EADDRINUSE):
			if a.Ours == nil || !a.Ours() {
				r.Found(ListenTaken, err.Error(), "end the other program (ss -ltnp shows it), or write another port")
			}
		case errors.Is(err, fs.ErrPermission):
			r.Found(ListenDenied, err.Error(), "write a port from 1024 on, or allow it (AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit)")
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			r.Found(ListenDenied, err.Error(), "write an address of this machine (ip addr shows them), or 0.0.0.0 for all of them")
		default:
			r.Found(ListenDenied, err.Error(), "write host:port, such as 127.0.0.1:8080")
		}
	}}
}

// Exposure is who reaches a listener.
type Exposure struct {
	Listen, Admin string
	AdminOpen     bool // it asks for no key
	AdminTLS      bool
	Anonymous     bool // clients without a key are let in
}

// Check looks at who is let in. Where keys are asked for, or what is open is told to be
// reached from this machine alone, there is nothing to say.
func (e Exposure) Check() Check {
	return Check{Of: "listeners", Run: func(_ context.Context, r *Reporter) {
		far := func(at string) bool {
			host, _, err := net.SplitHostPort(at)
			return err == nil && !identity.Loopback(host)
		}
		switch {
		case !far(e.Admin):
		case e.AdminOpen:
			r.FoundOf("admin.listen", AdminOpen, fmt.Sprintf("it listens at %s without admin.keys", e.Admin),
				"give admin.keys (headgate key makes one), or listen at 127.0.0.1; whoever reaches it can drain pools and read prompts in memory")
		case !e.AdminTLS:
			r.FoundOf("admin.listen", AdminPlain, fmt.Sprintf("it listens at %s with admin.keys and without admin.tls", e.Admin), "give admin.tls, or listen at 127.0.0.1 and have a proxy speak https")
		}
		if e.Anonymous && far(e.Listen) {
			r.FoundOf("listen", AnonymousOpen, fmt.Sprintf("it listens at %s, and anonymous lets in callers without a key", e.Listen), "give keys (headgate key create) and leave anonymous out, or listen at 127.0.0.1")
		}
	}}
}
