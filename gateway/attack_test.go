package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"headgate/engine/enginetest"
)

// chunked is a body in chunks of its own.
func chunked(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String() + "0\r\n\r\n"
}

// Requests that two programs would read differently, each with another request hidden in
// it. Whatever is made of the first, the hidden one is never served: where there is any
// doubt the connection ends with the answer.
func TestSmuggling(t *testing.T) {
	key, body := "Authorization: Bearer "+aliceKey, chatBody("")
	prompt := `{"model":"test-model","prompt":"SMUGGLED"}`
	hidden := head("POST "+completions+" HTTP/1.1", key, fmt.Sprint("Content-Length: ", len(prompt))) + prompt
	post, old := "POST "+chat+" HTTP/1.1", "POST "+chat+" HTTP/1.0"
	length := func(n int) string { return fmt.Sprint("Content-Length: ", n) }
	const te = "Transfer-Encoding: chunked"
	whole := chunked(body)
	for name, c := range map[string]struct {
		request  string
		statuses string
		reaches  int // requests that the engine gets
	}{
		// The reference: what is not doubtful is served, also one behind the other.
		"two requests":                     {head(post, key, length(len(body))) + body + head("GET /v1/models HTTP/1.1", key), "200 200", 1},
		"CL.TE":                            {head(post, key, length(len(whole)+len(hidden)), te) + whole + hidden, "200", 1},
		"CL.TE, the other way round":       {head(post, key, te, length(len(whole)+len(hidden))) + whole + hidden, "200", 1},
		"TE.CL":                            {head(post, key, length(4), te) + chunked(hidden), "400", 0},
		"chunked, and more behind it":      {head(post, key, te) + whole + hidden, "200", 1},
		"TE.TE, unknown":                   {head(post, key, "Transfer-Encoding: xchunked", length(0)) + hidden, "501", 0},
		"TE.TE, two headers":               {head(post, key, te, "Transfer-Encoding: identity") + whole + hidden, "501", 0},
		"TE.TE, chunked twice":             {head(post, key, te, te) + whole + hidden, "501", 0},
		"TE.TE, a list":                    {head(post, key, "Transfer-Encoding: chunked, identity") + whole + hidden, "501", 0},
		"TE.TE, a list that ends in it":    {head(post, key, "Transfer-Encoding: identity, chunked") + whole + hidden, "501", 0},
		"TE.TE, a vertical tab":            {head(post, key, "Transfer-Encoding: \x0bchunked", length(0)) + hidden, "400", 0},
		"TE.TE, a space before the colon":  {head(post, key, "Transfer-Encoding : chunked", length(0)) + hidden, "400", 0},
		"TE.TE, quoted":                    {head(post, key, `Transfer-Encoding: "chunked"`, length(0)) + hidden, "501", 0},
		"TE folded":                        {head(post, key, "Transfer-Encoding:\r\n chunked", length(len(whole)+len(hidden))) + whole + hidden, "200", 1},
		"TE folded into another header":    {head(post, key, "X-A: b\r\n Transfer-Encoding: chunked", length(len(body))) + body + hidden[:0], "200", 1},
		"TE of HTTP/1.0":                   {head(old, key, te, length(len(body)), "Connection: keep-alive") + body + hidden, "200", 1},
		"HTTP/1.0 and more behind it":      {head(old, key, length(len(body)), "Connection: keep-alive") + body + hidden, "200", 1},
		"a fold in front of all headers":   {post + "\r\n X-A: b\r\n" + key + "\r\nHost: h\r\n" + length(0) + "\r\n\r\n" + hidden, "400", 0},
		"two lengths":                      {head(post, key, length(0), length(len(hidden))) + hidden, "400", 0},
		"a list of lengths":                {head(post, key, "Content-Length: 0, 5") + hidden, "400", 0},
		"a length with a sign":             {head(post, key, "Content-Length: +5") + "12345" + hidden, "400", 0},
		"a length below zero":              {head(post, key, "Content-Length: -5") + hidden, "400", 0},
		"a length in hex":                  {head(post, key, "Content-Length: 0x5") + hidden, "400", 0},
		"a length with a space":            {head(post, key, "Content-Length: 1 0") + hidden, "400", 0},
		"a length folded":                  {head(post, key, "Content-Length: 1\r\n 0") + hidden, "400", 0},
		"a length beyond 64 bits":          {head(post, key, "Content-Length: 18446744073709551616") + hidden, "400", 0},
		"a length before a space":          {head(post, key, fmt.Sprint("Content-Length : ", len(hidden))) + hidden, "400", 0},
		"a CR within a header":             {head(post, key, "X-A: b\rContent-Length: 0", length(len(hidden))) + hidden, "400", 0},
		"a NUL within a header":            {head(post, key, "X-A: b\x00", length(0)) + hidden, "400", 0},
		"a header without a colon":         {head(post, key, "X-A", length(0)) + hidden, "400", 0},
		"a header without a name":          {head(post, key, ": b", length(0)) + hidden, "400", 0},
		"chunks end in LF":                 {head(post, key, te) + fmt.Sprintf("%x\n%s\r\n0\r\n\r\n", len(body), body) + hidden, "400", 0},
		"a chunk that is longer":           {head(post, key, te) + fmt.Sprintf("%x\r\n%sXX\r\n0\r\n\r\n", len(body), body) + hidden, "400", 0},
		"a chunk with a sign":              {head(post, key, te) + fmt.Sprintf("+%x\r\n%s\r\n0\r\n\r\n", len(body), body) + hidden, "400", 0},
		"a chunk in hex":                   {head(post, key, te) + fmt.Sprintf("0x%x\r\n%s\r\n0\r\n\r\n", len(body), body) + hidden, "400", 0},
		"a chunk beyond 64 bits":           {head(post, key, te) + "10000000000000000\r\n" + body + hidden, "400", 0},
		"a chunk of half the world":        {head(post, key, te) + "7fffffffffffffff\r\n" + strings.Repeat("x", 1<<20) + hidden, "413", 0},
		"chunk extensions":                 {head(post, key, te) + fmt.Sprintf("%x;a=b;c=\"d\"\r\n%s\r\n0;e\r\n\r\n", len(body), body) + hidden, "200", 1},
		"chunk extensions without end":     {head(post, key, te) + "1;" + strings.Repeat("a", 64<<10), "400", 0},
		"a byte a chunk with extensions":   {head(post, key, te) + strings.Repeat("1;"+strings.Repeat("a", 1000)+"\r\n \r\n", 60), "400", 0},
		"a trailer that chooses":           {head(post, key, te, "Trailer: Headgate-Class, Authorization") + strings.TrimSuffix(whole, "\r\n") + "Headgate-Class: gold\r\nAuthorization: Bearer x\r\n\r\n" + hidden, "200", 1},
		"two hosts":                        {strings.Replace(head(post, key, length(0)), "Host:", "Host: a\r\nHost:", 1) + hidden, "400", 0},
		"no host":                          {post + "\r\n" + key + "\r\n" + length(0) + "\r\n\r\n" + hidden, "400", 0},
		"a host that is none":              {post + "\r\n" + key + "\r\nHost: a b\r\n" + length(0) + "\r\n\r\n" + hidden, "400", 0},
		"a host of another place":          {post + "\r\n" + key + "\r\nHost: a/../b@c\r\n" + length(0) + "\r\n\r\n" + hidden, "400", 0},
		"a space in the path":              {head("POST "+chat+" x HTTP/1.1", key, length(0)) + hidden, "400", 0},
		"no version":                       {"POST " + chat + "\r\n" + hidden, "400", 0},
		"a version of its own":             {head("POST "+chat+" HTTP/1.11", key, length(0)) + hidden, "400", 0},
		"HTTP/2 without an upgrade":        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + hidden, "404", 0},
		"an upgrade to HTTP/2":             {head(post, key, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", length(len(body))) + body, "200", 1},
		"a tunnel":                         {head("CONNECT gateway.test:80 HTTP/1.1", key) + hidden, "404", 0},
		"a length for what has no body":    {head("GET /v1/models HTTP/1.1", key, length(len(hidden))) + hidden, "200", 0},
		"chunks for what has no body":      {head("GET /v1/models HTTP/1.1", key, te) + "0\r\n\r\n" + hidden, "200", 0},
		"a body that the answer overtakes": {head("POST /none HTTP/1.1", key, length(len(hidden))) + hidden, "404", 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, setup{}, func(t *testing.T, r *rig) {
				conn, err := r.dial(t.Context(), "tcp", "gateway.test:80")
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				go func() { _, _ = io.WriteString(conn, c.request) }() // which may be cut
				answered := make(chan struct{})
				go func() {
					defer close(answered)
					for range c.reaches {
						call := r.engine.Accept(t)
						if strings.Contains(string(call.Body), "SMUGGLED") {
							t.Error("the hidden request reached the engine")
						}
						call.Emit(1)
						call.Finish("stop")
					}
				}()
				start, in, got := time.Now(), bufio.NewReader(conn), []string{}
				method, _, _ := strings.Cut(c.request, " ")
				for {
					res, err := http.ReadResponse(in, &http.Request{Method: method})
					if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, fmt.Sprint(res.StatusCode))
					if _, err := io.Copy(io.Discard, res.Body); err != nil {
						t.Error(err)
					}
				}
				<-answered
				if s := strings.Join(got, " "); s != c.statuses {
					t.Errorf("answers %s, want %s", s, c.statuses)
				}
				if kept := time.Since(start) > 30*time.Second; kept != (name == "two requests" || name == "an upgrade to HTTP/2" || name == "TE folded into another header") {
					t.Errorf("the connection ended after %s", time.Since(start))
				}
				if n := r.engine.Scrapes(chat) + r.engine.Scrapes(completions); n != c.reaches {
					t.Errorf("%d requests reached the engine", n)
				}
				r.quiet()
			})
		})
	}
}

// Case 30 and the like: what an engine says of a message as a whole does not reach a
// client either, but for what its API has.
func TestWhatAClientSees(t *testing.T) {
	bubble(t, setup{}, func(t *testing.T, r *rig) {
		for _, stream := range []bool{true, false} {
			done := r.start("POST", chat, chatBody(fmt.Sprintf(`,"stream":%t`, stream)))
			call := r.engine.Accept(t)
			call.Emit(1)
			call.Finish("stop")
			a := <-done
			for name := range a.header {
				if !strings.HasPrefix(name, "Headgate-") && !strings.Contains(" Content-Type Content-Length Cache-Control X-Accel-Buffering X-Request-Id Date ", " "+name+" ") {
					t.Errorf("stream %t: the client got %s: %q", stream, name, a.header[name])
				}
			}
		}
		// One that redirects is not followed, and its Location, cookies and challenges are
		// its own.
		done := r.start("POST", chat, chatBody(""))
		call := r.engine.Accept(t)
		call.Document(302, `{"error":{"message":"elsewhere"}}`, "Location", "http://169.254.169.254/latest", "Set-Cookie", "a=b", "WWW-Authenticate", "Basic", "Server", "uvicorn", "X-Internal", "10.0.0.7")
		a := <-done
		if a.status != 502 || a.header.Get("Location") != "" || a.header.Get("Set-Cookie") != "" || a.header.Get("WWW-Authenticate") != "" || a.header.Get("Server") != "" || a.header.Get("X-Internal") != "" {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
		synctest.Wait()
		r.quiet()
	})
}

// Slow clients cost a connection for a bounded time, and never the others' turn: as many
// as may connect at once send their headers by the byte, and are gone in time.
func TestSlowloris(t *testing.T) {
	bubble(t, setup{limits: Limits{Connections: 8, HeaderTimeout: 3 * time.Second, BodyTimeout: 5 * time.Second}, engine: enginetest.Options{}}, func(t *testing.T, r *rig) {
		start := time.Now()
		for i := range 8 {
			conn, err := r.dial(t.Context(), "tcp", "gateway.test:80")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			text := head("POST "+chat+" HTTP/1.1", "Authorization: Bearer "+aliceKey, "Content-Length: 1000")
			if i%2 == 0 {
				text += strings.Repeat("a", 100) // it is slow with its body
			}
			slow := text[len(text)-100:]
			if _, err := io.WriteString(conn, text[:len(text)-100]); err != nil {
				t.Fatal(err)
			}
			go func() {
				for b := range strings.SplitSeq(slow, "") {
					time.Sleep(time.Second)
					if _, err := io.WriteString(conn, b); err != nil {
						return
					}
				}
			}()
		}
		if a := r.send("GET", "/v1/models", ""); a.status != 200 {
			t.Error(a.status)
		}
		if d := time.Since(start); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("another client waited %s", d)
		}
		time.Sleep(10 * time.Second)
		r.quiet()
	})
}
