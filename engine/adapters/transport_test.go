package adapters_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine"
	"headgate/engine/enginetest"
	"headgate/identity"
	"headgate/wire"
)

// script serves connections in order: each gets its turn to read requests and
// answer them by hand.
func script(t *testing.T, turns ...func(*bufio.Reader, net.Conn)) (engine.Config, *enginetest.Listener) {
	l := enginetest.NewListener()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, turn := range turns {
			c, err := l.Accept()
			if err != nil {
				return
			}
			turn(bufio.NewReader(c), c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	var cfg engine.Config
	cfg.SetDefaults()
	cfg.Kind, cfg.URL, cfg.DialContext = engine.OpenAI, "http://engine.test", l.DialContext
	cfg.AbortGrace = time.Millisecond
	return cfg, l
}

func readRequest(r *bufio.Reader) {
	req, err := http.ReadRequest(r)
	if err == nil {
		_, _ = io.Copy(io.Discard, req.Body)
	}
}

const answer = `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}`

func serveOne(r *bufio.Reader, c net.Conn) {
	readRequest(r)
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
}

func whole(interruptible bool) *engine.Attempt {
	return &engine.Attempt{API: wire.Chat, Body: enginetest.Body(false), Interruptible: interruptible}
}

// llama-server closes a connection after 100 requests, while the next one is
// on its way.
func TestKeepAliveRaceIsSentAgain(t *testing.T) {
	cfg, l := script(t,
		func(r *bufio.Reader, c net.Conn) { serveOne(r, c); readRequest(r) },
		serveOne)
	a := adapter(t, cfg)
	for range 2 {
		s, err := a.Dispatch(t.Context(), whole(false))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := all(s); err != io.EOF {
			t.Fatal(err)
		}
	}
	if l.Dialed() != 2 {
		t.Errorf("%d connections, want 2", l.Dialed())
	}
}

// A new connection that breaks is no such race: the request may have done it.
func TestFreshConnectionIsNotSentAgain(t *testing.T) {
	for _, interruptible := range []bool{true, false} {
		cfg, l := script(t, func(r *bufio.Reader, c net.Conn) { readRequest(r) }, serveOne)
		a := adapter(t, cfg)
		_, err := a.Dispatch(t.Context(), whole(interruptible))
		var u *engine.Unanswered
		if !errors.As(err, &u) {
			t.Errorf("interruptible %t: %v", interruptible, err)
		}
		if l.Dialed() != 1 {
			t.Errorf("interruptible %t: %d connections, want 1", interruptible, l.Dialed())
		}
	}
}

func TestIdleConnectionsAreDroppedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
		a := adapter(t, e.Config())
		for _, c := range []struct {
			pause time.Duration
			want  int
		}{{0, 1}, {3900 * time.Millisecond, 1}, {4100 * time.Millisecond, 2}} {
			time.Sleep(c.pause)
			a.Observe(t.Context())
			if n := e.Dialed(); n != c.want {
				t.Errorf("after a pause of %s: %d connections, want %d", c.pause, n, c.want)
			}
		}
		a.Close()
	})
}

func TestTimeouts(t *testing.T) {
	t.Run("headers are waited for without bound", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := enginetest.New(t, enginetest.Options{Kind: engine.LlamaCpp})
			a := adapter(t, e.Config())
			start := time.Now()
			s, err := dispatch(t, e, a, streamed("a"), func(c *enginetest.Call) { time.Sleep(time.Hour); c.Finish("stop") })
			if err != nil || time.Since(start) != time.Hour {
				t.Fatalf("%v after %s", err, time.Since(start))
			}
			if _, _, err := all(s); err != io.EOF {
				t.Error(err)
			}
		})
	})
	t.Run("headers with a bound", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
			cfg := e.Config()
			cfg.HeaderTimeout = 30 * time.Second
			a := adapter(t, cfg)
			start := time.Now()
			_, err := a.Dispatch(t.Context(), streamed("a"))
			var u *engine.Unanswered
			if !errors.As(err, &u) || time.Since(start) != 30*time.Second {
				t.Fatalf("%v after %s", err, time.Since(start))
			}
			start = time.Now()
			if c := u.Confirm(t.Context()); c.By != engine.ByGrace || c.At.Sub(start) != cfg.AbortGrace {
				t.Errorf("%+v after %s", c, c.At.Sub(start))
			}
		})
	})
	t.Run("a scrape that gets no answer is not a dead engine", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg, _ := script(t, func(r *bufio.Reader, _ net.Conn) { readRequest(r); readRequest(r) })
			a := adapter(t, cfg)
			o := a.Observe(t.Context())
			if o.State != engine.Unknown || !errors.Is(o.Err, context.DeadlineExceeded) || o.At.Sub(o.Asked) != cfg.ScrapeTimeout {
				t.Errorf("%+v", o)
			}
			if !strings.Contains(fmt.Sprint(o.Err), "scrape_timeout 2s") {
				t.Error(o.Err)
			}
		})
	})
	t.Run("a refusal without end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			cfg, _ := script(t, func(r *bufio.Reader, c net.Conn) {
				readRequest(r)
				fmt.Fprintf(c, "HTTP/1.1 503 busy\r\nContent-Length: 100\r\n\r\nbusy")
				readRequest(r)
			})
			a := adapter(t, cfg)
			_, err := a.Dispatch(t.Context(), streamed("a"))
			var refused *engine.StatusError
			if !errors.As(err, &refused) || string(refused.Body) != "busy" {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestProxyOfTheEnvironmentIsIgnored(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.test:3128")
	t.Setenv("http_proxy", "http://proxy.test:3128")
	e := enginetest.New(t, enginetest.Options{Kind: engine.OpenAI})
	cfg := e.Config()
	cfg.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != "engine.test:80" {
			t.Errorf("dialled %s", addr)
		}
		return e.Config().DialContext(ctx, network, addr)
	}
	if o := adapter(t, cfg).Observe(t.Context()); o.State != engine.Ready {
		t.Error(o.Err)
	}
}

// Case 32: whatever goes wrong, the key is in no error and no log line.
func TestKeyIsNeverShown(t *testing.T) {
	const key = "sk-5ecret-k3y"
	t.Setenv("ENGINE_KEY", key)
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	each(t, func(t *testing.T, e *enginetest.Engine, _ engine.Adapter) {
		cfg := e.Config()
		cfg.APIKeyEnv = "ENGINE_KEY"
		cfg.HeaderTimeout, cfg.AbortGrace = time.Millisecond, time.Millisecond
		a := adapter(t, cfg)
		quoting := `{"error":{"message":"Incorrect API key provided: ` + key + `"}}`
		var refused error
		{
			patient := cfg
			patient.HeaderTimeout = 0
			_, refused = dispatch(t, e, adapter(t, patient), streamed("a"), func(c *enginetest.Call) { c.Document(401, quoting) })
			var status *engine.StatusError
			if !errors.As(refused, &status) || !strings.Contains(string(status.Body), identity.Redacted) {
				t.Errorf("%v", refused)
			}
			logger.Error("refused", "body", string(status.Body))
		}
		_, late := a.Dispatch(t.Context(), streamed("b"))
		// Nothing is to change in the adapter while it is printed.
		if u := new(engine.Unanswered); errors.As(late, &u) {
			u.Confirm(t.Context())
		}
		e.Answer("/v1/models", 401, quoting)
		e.Answer("/health", 401, quoting)
		e.Answer("/v1/loads", 401, quoting)
		o := a.Observe(t.Context())
		_, caps := a.Capabilities(t.Context())
		e.Close()
		_, dead := a.Dispatch(t.Context(), streamed("c"))
		for _, err := range []error{refused, late, caps, dead, o.Err} {
			if err == nil {
				t.Error("an attempt did not fail")
			}
			logger.Error("failed", "err", err, "cfg", cfg, "observation", o)
			fmt.Fprintf(&log, "%v %+v %#v %#v\n", err, err, cfg, a)
		}
	})
	t.Setenv("ENGINE_KEY", key+"\n")
	cfg := engine.Config{Kind: engine.OpenAI, URL: "http://h", APIKeyEnv: "ENGINE_KEY"}
	_, err := cfg.Key()
	fmt.Fprint(&log, err)
	if err == nil {
		t.Error("a key with a line end")
	}
	_ = os.Unsetenv("ENGINE_KEY")
	if _, err = cfg.Key(); err == nil || !strings.Contains(err.Error(), `"ENGINE_KEY"`) {
		t.Error(err)
	}
	if strings.Contains(log.String(), "5ecret") {
		t.Errorf("the key was shown:\n%s", log.String())
	}
}
