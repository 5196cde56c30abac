package adapters_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"headgate/egress"
	"headgate/engine"
)

// counted counts what is taken of what is written.
type counted struct {
	net.Conn
	n atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// forever writes a text until nobody takes it any more.
func forever(c net.Conn, text string) {
	for {
		if _, err := io.WriteString(c, text); err != nil {
			return
		}
	}
}

// mostTaken is more than any bound that an adapter has in this test, in bytes.
const mostTaken = 4 << 20

// An engine that lies, or is not one: what is read of it has a bound, and nothing of one
// answer is taken for another.
func TestLies(t *testing.T) {
	refused := func(status int) func(error) bool {
		return func(err error) bool {
			var s *engine.StatusError
			return errors.As(err, &s) && s.Status == status
		}
	}
	unanswered := func(err error) bool { u := (*engine.Unanswered)(nil); return errors.As(err, &u) }
	for name, c := range map[string]struct {
		turn     func(net.Conn)
		dispatch func(error) bool // nil: it gives a stream
		end      error            // of the stream; nil: any but a good one
	}{
		"informational answers without end": {func(c net.Conn) { forever(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n") }, unanswered, nil},
		"a header without end": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			forever(c, "X-A: "+strings.Repeat("a", 1000)+"\r\n")
		}, unanswered, nil},
		"one header line without end": {func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nX-A: "); forever(c, strings.Repeat("a", 1000)) }, unanswered, nil},
		"a status line without end":   {func(c net.Conn) { forever(c, "HTTP/1.1 200 "+strings.Repeat("a", 1000)) }, unanswered, nil},
		"no HTTP at all":              {func(c net.Conn) { fmt.Fprint(c, "SSH-2.0-OpenSSH_9.2\r\n") }, unanswered, nil},
		"a redirect": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")
		}, refused(307), nil},
		"a switch of protocols": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}, refused(101), nil},
		"two lengths": {func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n%s", answer)
		}, unanswered, nil},
		"a length that is too long": {func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer)+5, answer)
		}, nil, io.ErrUnexpectedEOF},
		"a chunk that is none": {func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n%s", answer)
		}, nil, nil},
		"chunk extensions without end": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1;")
			forever(c, strings.Repeat("a", 1000))
		}, nil, nil},
		"a trailer without end": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
			forever(c, "X-A: "+strings.Repeat("a", 1000)+"\r\n")
		}, nil, nil},
		"blanks without end": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
			forever(c, strings.Repeat(" ", 4096))
		}, nil, nil},
		"compressed, unasked": {func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00")
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cfg engine.Config
				cfg.SetDefaults()
				cfg.Kind, cfg.URL, cfg.AbortGrace, cfg.MaxEvent, cfg.MaxAnswer = engine.OpenAI, "http://engine.test", time.Millisecond, 64<<10, 64<<10
				var sent *counted // nothing is taken that is not read
				dialed := 0
				cfg.DialContext = func(context.Context, string, string) (net.Conn, error) {
					here, there := net.Pipe()
					sent = &counted{Conn: there}
					dialed++
					go func() {
						defer there.Close()
						readRequest(bufio.NewReader(there))
						c.turn(sent)
					}()
					return here, nil
				}
				s, err := adapter(t, cfg).Dispatch(t.Context(), whole(true))
				if c.dispatch != nil {
					if err == nil || !c.dispatch(err) {
						t.Errorf("dispatch: %v", err)
					}
				} else if err != nil {
					t.Errorf("dispatch: %v", err)
				} else if _, _, err = all(s); err == io.EOF || err == nil || c.end != nil && err != c.end {
					t.Errorf("end: %v", err)
				}
				if u := (*engine.Unanswered)(nil); errors.As(err, &u) {
					u.Confirm(t.Context())
				}
				if s != nil {
					s.Abort(t.Context())
				}
				synctest.Wait()
				if n := sent.n.Load(); n > mostTaken || dialed != 1 {
					t.Errorf("%d bytes were taken, of %d connections", n, dialed)
				}
			})
		})
	}
}

// A second answer behind the first is nobody's: the connection is not used again.
func TestSecondAnswerIsNobodys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := `{"choices":[{"message":{"content":"poison"},"finish_reason":"stop"}]}`
		cfg, l := script(t,
			func(r *bufio.Reader, c net.Conn) {
				serveOne(r, c)
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(poison), poison)
				readRequest(r)
			},
			serveOne)
		a := adapter(t, cfg)
		for range 2 {
			s, err := a.Dispatch(t.Context(), whole(false))
			if err != nil {
				t.Fatal(err)
			}
			if _, raw, err := all(s); err != io.EOF || strings.Contains(string(raw), "poison") {
				t.Errorf("%s, %v", raw, err)
			}
			synctest.Wait()
		}
		if l.Dialed() != 2 {
			t.Errorf("%d connections", l.Dialed())
		}
	})
}

// names answers for every name with one address, by DNS over a stream; the zero one with
// that there is no such name.
type names struct{ address atomic.Pointer[[4]byte] }

func (n *names) is(a, b, c, d byte) { n.address.Store(&[4]byte{a, b, c, d}) }

func (n *names) serve(c net.Conn) {
	defer c.Close()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		q := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		end := 12
		for q[end] != 0 {
			end += 1 + int(q[end])
		}
		end += 5 // the root, type and class
		out := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...)
		switch address := n.address.Load(); {
		case address == nil:
			out[3] = 0x83 // no such name
		case q[end-3] == 1: // A
			out[7] = 1
			out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			out = append(out, address[:]...)
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil {
			return
		}
	}
}

// An engine's name that is another machine's suddenly: it is looked up for each new
// connection, an address of the link is refused whatever name it has, and a name that is
// gone is an engine that can't be reached, until it is back.
func TestNames(t *testing.T) {
	n := &names{}
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(_ context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		go n.serve(there)
		return here, nil
	}}
	defer func() { net.DefaultResolver = old }()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"object":"list","data":[]}`) }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var cfg engine.Config
	cfg.SetDefaults()
	cfg.Kind, cfg.URL, cfg.ConnectTimeout = engine.OpenAI, "http://engine.test.:"+at.Port(), 5*time.Second
	a := adapter(t, cfg)
	look := func(what string, want engine.State, says string) {
		t.Helper()
		o := a.Observe(t.Context())
		if o.State != want || says == "" && o.Err != nil || !strings.Contains(fmt.Sprint(o.Err), says) {
			t.Errorf("%s: %+v", what, o)
		}
		a.Close() // the next one dials
	}
	n.is(127, 0, 0, 1)
	look("where it is", engine.Ready, "")
	n.is(169, 254, 169, 254)
	look("an address of the link", engine.Unknown, "is not dialled")
	_, err = a.Dispatch(t.Context(), whole(true))
	if refused := (*egress.Error)(nil); !errors.As(err, &refused) {
		t.Errorf("dispatch: %v", err)
	}
	n.address.Store(nil)
	look("no such name", engine.Unknown, "no such host")
	n.is(127, 0, 0, 1)
	look("back", engine.Ready, "")
	n.is(127, 1, 2, 3) // where nobody listens, and which is not the old one
	look("another machine", engine.Down, "refused")
}
