package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/wire"
)

// Case 22: the client has event k before the engine sends the next, whatever
// the client says it could decompress.
func TestEachEventIsFlushed(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		res, call := r.stream("Accept-Encoding", "gzip, br, zstd")
		for i := 2; i < 200; i++ {
			start := time.Now()
			call.Emit(1)
			if e := readEvent(t, res.Body); !strings.Contains(e, fmt.Sprintf("w%d ", i)) || time.Since(start) != 0 {
				t.Fatalf("event %d after %v: %q", i, time.Since(start), e)
			}
		}
		call.Finish("stop")
		a := r.whole(res)
		if !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			t.Errorf("%q", a.body)
		}
		h := a.header
		if h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-cache" || h.Get("Content-Encoding") != "" || h.Get("Content-Length") != "" {
			t.Errorf("%v", h)
		}
		r.quiet()
	})
}

// Case 23: an error in a stream that has begun is its last event; before that
// it is a status.
func TestErrorInStream(t *testing.T) {
	for _, kind := range engine.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			bubble(t, setup{engine: enginetest.Options{Kind: kind}, keepalive: time.Hour}, func(t *testing.T, r *rig) {
				res, call := r.stream()
				call.Fail(500, "CUDA error")
				a := r.whole(res)
				last := strings.TrimSuffix(strings.TrimPrefix(a.body, "data: "), "\n\n")
				if a.status != 200 || strings.Contains(a.body, "[DONE]") {
					t.Errorf("%d %q", a.status, a.body)
				}
				if e := documented(t, 502, last); *e.Error.Code != wire.CodeUpstreamError || !strings.Contains(e.Error.Message, "CUDA error") {
					t.Errorf("%q", a.body)
				}
				// The same as the first thing the engine says, and for one who wants it whole.
				for _, body := range []string{chatBody(`,"stream":true`), chatBody("")} {
					done := r.start("POST", chat, body)
					call = r.engine.Accept(t)
					call.Fail(500, "CUDA error")
					a := <-done
					if e := documented(t, a.status, a.body); a.status != 502 || *e.Error.Code != wire.CodeUpstreamError {
						t.Errorf("%d %s", a.status, a.body)
					}
					if a.header.Get(headerDecision) != "admitted" || a.header.Get(headerClass) != "interactive" {
						t.Errorf("%v", a.header)
					}
				}
				r.quiet()
			})
		})
	}
}

// Case 24: the end of a stream without its end is a failure.
func TestTornStream(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, end := range []func(*enginetest.Call){(*enginetest.Call).End, (*enginetest.Call).Cut} {
			res, call := r.stream()
			end(call)
			a := r.whole(res)
			last := strings.TrimSuffix(strings.TrimPrefix(a.body, "data: "), "\n\n")
			if e := documented(t, 502, last); *e.Error.Code != wire.CodeUpstreamTorn || strings.Contains(a.body, "[DONE]") {
				t.Errorf("%q", a.body)
			}
			done := r.start("POST", chat, chatBody(""))
			call = r.engine.Accept(t)
			call.Emit(2)
			end(call)
			b := <-done
			if e := documented(t, b.status, b.body); b.status != 502 || *e.Error.Code != wire.CodeUpstreamTorn {
				t.Errorf("%d %s", b.status, b.body)
			}
		}
		r.quiet()
	})
}

// Case 26: bytes come through as they were, wherever they are cut.
func TestBytesAreForwarded(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		res, call := r.stream()
		event := `data: {"id":"x","choices":[{"index":0,"delta":{"content":"Grüße 🦫 你好 \u00e9"},"logprobs":null,"finish_reason":null}],"odd":  [1 ,2]}` + "\n\n"
		for i := range len(event) {
			call.Send(event[i : i+1])
		}
		call.Send(": a comment\n\n")
		call.Finish("stop")
		a := r.whole(res)
		if !utf8.ValidString(a.body) || strings.Count(a.body, event) != 1 || !strings.Contains(a.body, ": a comment\n\n") {
			t.Errorf("%q", a.body)
		}
	})
}

// Case 27: usage that only the gateway asked for is not passed on; what a client
// asked for is, and whole answers have it always.
func TestUsage(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for extra, want := range map[string]bool{
			`,"stream":true`: false,
			`,"stream":true,"stream_options":{"include_usage":false}`: false,
			`,"stream":true,"stream_options":{"include_usage":true}`:  true,
			``: true,
		} {
			for path, body := range map[string]string{chat: chatBody(extra), completions: `{"model":"test-model","prompt":"x"` + extra + `}`} {
				done := r.start("POST", path, body)
				call := r.engine.Accept(t)
				if !gjson.GetBytes(call.Body, "stream").Bool() || !gjson.GetBytes(call.Body, "stream_options.include_usage").Bool() {
					t.Errorf("upstream got %s", call.Body)
				}
				call.Emit(3)
				call.Finish("length")
				a := <-done
				if got := strings.Contains(a.body, `"completion_tokens":3`); a.status != 200 || got != want {
					t.Errorf("%s %s: usage %v in %d %s", path, extra, got, a.status, a.body)
				}
				if extra == "" {
					text := gjson.Get(a.body, "choices.0.message.content").Str + gjson.Get(a.body, "choices.0.text").Str
					if text != "w1 w2 w3 " || gjson.Get(a.body, "choices.0.finish_reason").Str != "length" || a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) {
						t.Errorf("%v %s", a.header, a.body)
					}
				}
			}
		}
		r.quiet()
	})
}

// Case 28: a silent stream is kept alive with comments, from before its first
// event; a whole answer can't be.
func TestKeepAlive(t *testing.T) {
	bubble(t, setup{keepalive: 10 * time.Second}, func(t *testing.T, r *rig) {
		stream := r.start("POST", chat, chatBody(`,"stream":true`))
		slow := r.engine.Accept(t)
		whole := r.start("POST", chat, chatBody(""))
		wholeCall := r.engine.Accept(t)
		time.Sleep(25 * time.Second)
		for _, c := range []*enginetest.Call{slow, wholeCall} {
			c.Emit(1)
			c.Finish("stop")
		}
		a := <-stream
		if !strings.HasPrefix(a.body, ": keep-alive\n\n: keep-alive\n\ndata: {") || strings.Count(a.body, "keep-alive") != 2 {
			t.Errorf("%q", a.body)
		}
		if a := <-whole; a.status != 200 || !strings.HasPrefix(a.body, "{") {
			t.Errorf("%d %q", a.status, a.body)
		}
	})
}

// A silent engine fails one request, not its connection's next.
func TestIdleTimeout(t *testing.T) {
	bubble(t, setup{idle: 20 * time.Second, keepalive: 15 * time.Second}, func(t *testing.T, r *rig) {
		res, _ := r.stream()
		a := r.whole(res)
		last := strings.TrimPrefix(strings.TrimSuffix(a.body, "\n\n"), ": keep-alive\n\ndata: ")
		if e := documented(t, 504, last); *e.Error.Code != wire.CodeUpstreamTimeout || !strings.Contains(e.Error.Message, "20s") {
			t.Errorf("%q", a.body)
		}
		r.quiet()
	})
}

// pipes is a network without buffers: a write waits for its reader.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- b:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.done); return nil }

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

// A client that stops reading is cut after the stall time, and what it held is
// free; one that reads slowly is not.
func TestClientStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		r := newRig(t, setup{listener: l, dial: l.dial, limits: Limits{ClientStall: 30 * time.Second}})
		conn, err := l.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		body := chatBody(`,"stream":true`)
		request := head("POST "+chat+" HTTP/1.1", "Authorization: Bearer "+aliceKey, fmt.Sprintf("Content-Length: %d", len(body))) + body
		go func() { _, _ = io.WriteString(conn, request) }()
		call := r.engine.Accept(t)
		go func() {
			for range 100 {
				call.Emit(1)
			}
		}()
		buf := make([]byte, 64)
		for range 40 { // slowly, for 80 s in all
			time.Sleep(2 * time.Second)
			if _, err := conn.Read(buf); err != nil {
				t.Fatalf("cut while it was reading: %v", err)
			}
		}
		if got := r.pool.Snapshot().Used.Slots; got != 1 {
			t.Errorf("%d slots used", got)
		}
		start := time.Now()
		<-call.Gone()
		if d := time.Since(start); d < 20*time.Second || d > 32*time.Second {
			t.Errorf("cut after %v", d)
		}
		_ = conn.Close()
		r.quiet()
	})
}

// The same through a socket, whose buffers are the kernel's.
func TestClientStallSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
		return c, err
	}
	r := newRig(t, setup{listener: l, dial: dial, limits: Limits{ClientStall: 50 * time.Millisecond}})
	_, call := r.stream()
	event := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", strings.Repeat("x", 256<<10))
	for {
		call.Send(event)
		select {
		case <-call.Gone():
			return
		default:
		}
	}
}

// A client that leaves frees what it held, in the queue, before the first byte
// and in a stream.
func TestClientLeaves(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 4}, func(t *testing.T, r *rig) {
		leave := func(body string) (go_ context.CancelFunc, gone <-chan error) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			req := r.request("POST", chat, body).WithContext(ctx)
			go func() {
				res, err := r.client.Do(req)
				if err == nil {
					_, err = io.ReadAll(res.Body)
					_ = res.Body.Close()
				}
				done <- err
			}()
			return cancel, done
		}
		for _, body := range []string{chatBody(`,"stream":true`), chatBody("")} {
			for _, tokens := range []int{0, 2} {
				cancel, done := leave(body)
				call := r.engine.Accept(t)
				if tokens > 0 {
					call.Emit(tokens)
				}
				quit, gone := leave(body) // waits behind it
				synctest.Wait()
				if n := r.pool.Snapshot().Classes[0].Queue; n != 1 {
					t.Fatalf("%d wait", n)
				}
				quit()
				<-gone
				synctest.Wait()
				if n := r.pool.Snapshot().Classes[0].Queue; n != 0 {
					t.Errorf("%d wait after the client left", n)
				}
				cancel()
				<-done
				<-call.Gone()
				r.quiet()
			}
		}
		if n := r.counted("headgate_http_responses_total", "499"); n != 8 {
			t.Errorf("%v answers to clients that had left", n)
		}
	})
}

// counted sums a metric's series that have the label value.
func (r *rig) counted(name, label string) (sum float64) {
	r.t.Helper()
	for _, f := range r.gather() {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetValue() == label {
					sum += m.Counter.GetValue()
				}
			}
		}
	}
	return sum
}

// Case 20 and the drain from end to end: what runs finishes, what waits and what
// comes is refused, idle connections are let go, and the server returns.
func TestDrain(t *testing.T) {
	bubble(t, setup{slots: 1, depth: 4}, func(t *testing.T, r *rig) {
		// An idle connection of its own.
		idle := &http.Client{Transport: &http.Transport{DialContext: r.dial}}
		defer idle.CloseIdleConnections()
		res, err := idle.Do(r.request("GET", "/v1/models", ""))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(res.Body)
		_ = res.Body.Close()

		running, call := r.stream()
		var waiting []<-chan answer
		for _, extra := range []string{"", `,"stream":true`} {
			waiting = append(waiting, r.start("POST", chat, chatBody(extra)))
		}
		synctest.Wait()
		if err := r.gateway.Ready(); err != nil {
			t.Errorf("not ready before: %v", err)
		}
		ended := make(chan int, 1)
		go func() { ended <- r.drain(time.Minute) }()
		synctest.Wait()
		if err := r.gateway.Ready(); err == nil || err.Error() != "draining" {
			t.Errorf("ready while draining: %v", err)
		}
		refused := func(a answer) {
			t.Helper()
			if e := documented(t, a.status, a.body); a.status != 503 || *e.Error.Code != wire.CodeDraining || a.header.Get("Retry-After-Ms") != "" {
				t.Errorf("%d %v %s", a.status, a.header, a.body)
			}
		}
		for _, w := range waiting {
			refused(<-w)
		}
		res = r.do(r.request("POST", chat, chatBody("")))
		if !res.Close {
			t.Error("a client of a draining gateway is not told to go elsewhere")
		}
		refused(r.whole(res))
		time.Sleep(10 * time.Second)
		call.Emit(1)
		call.Finish("stop")
		if a := r.whole(running); !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
			t.Errorf("cut: %q", a.body)
		}
		if n := <-ended; n != 0 {
			t.Errorf("%d calls ended by force", n)
		}
		if _, err := idle.Do(r.request("GET", "/v1/models", "")); err == nil {
			t.Error("an idle connection outlived the drain")
		}
	})
}

// What still runs when the time is over is ended, and told so.
func TestDrainTimeout(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		stream, call := r.stream()
		whole := r.start("POST", chat, chatBody(""))
		r.engine.Accept(t)
		start := time.Now()
		ended := make(chan int, 1)
		go func() { ended <- r.drain(7 * time.Second) }()
		a := r.whole(stream)
		if e := documented(t, 503, strings.TrimSuffix(strings.TrimPrefix(a.body, "data: "), "\n\n")); *e.Error.Code != wire.CodeDraining {
			t.Errorf("%q", a.body)
		}
		b := <-whole
		if e := documented(t, b.status, b.body); *e.Error.Code != wire.CodeDraining {
			t.Errorf("%d %s", b.status, b.body)
		}
		if n := <-ended; n != 2 || time.Since(start) > 8*time.Second {
			t.Errorf("%d calls ended by force after %v", n, time.Since(start))
		}
		<-call.Gone()
	})
}

// Connections are bounded; the next is served when one ends.
func TestConnectionLimit(t *testing.T) {
	bubble(t, setup{limits: Limits{Connections: 2}}, func(t *testing.T, r *rig) {
		var open []net.Conn
		for range 2 {
			c, err := r.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, err := r.dial(ctx, "", ""); err == nil {
			_ = c.Close()
			t.Error("a third connection was accepted")
		}
		_ = open[0].Close()
		if a := r.send("GET", "/v1/models", ""); a.status != 200 {
			t.Errorf("%d", a.status)
		}
		_ = open[1].Close()
	})
}

// TestEndTogether: the events at the end of an answer that come together go out with one
// write; and what is held for one that is not for the client does not wait for what
// comes after it.
func TestEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		r := newRig(t, setup{listener: l, dial: l.dial})
		conn, err := l.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		body := chatBody(`,"stream":true`)
		request := head("POST "+chat+" HTTP/1.1", "Authorization: Bearer "+aliceKey, fmt.Sprintf("Content-Length: %d", len(body))) + body
		go func() { _, _ = io.WriteString(conn, request) }()
		call := r.engine.Accept(t)
		call.Emit(1)
		// A pipe gives what one write had, as far as there is room.
		buf := make([]byte, 4096)
		read := func(want ...string) {
			t.Helper()
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				if !strings.Contains(string(buf[:n]), w) {
					t.Errorf("%q is not in %q", w, buf[:n])
				}
			}
		}
		read("w1 ")
		end := "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
		usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n"
		call.Send(end + usage)
		read("stop") // though the usage that came with it is not for this client
		call.Send("data: [DONE]\n\n")
		read("[DONE]")
		_ = conn.Close()
		call.End()

		conn, err = l.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(conn, request) }()
		call = r.engine.Accept(t)
		call.Emit(1)
		read("w1 ")
		call.Send(end + usage + "data: [DONE]\n\n")
		read("stop", "[DONE]")
		_ = conn.Close()
		call.End()
		r.quiet()
	})
}
