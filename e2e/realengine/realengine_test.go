package realengine

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"headgate/e2e/engine/gguf"
)

// fakeEnv makes this test binary behave as a llama-server that needs a few
// health checks to load, or with the value "ends" ends at the second.
const fakeEnv = "REALENGINE_FAKE_LLAMA_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) != "" {
		fakeLlamaServer()
		return
	}
	os.Exit(m.Run())
}

func fakeLlamaServer() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stderr, "loading model", os.Args[1:])
	fmt.Fprintf(os.Stderr, "main: server is listening on http://%s - starting the main loop\n", l.Addr())
	checks := 0
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if checks++; checks == 2 && os.Getenv(fakeEnv) == "ends" {
			os.Exit(1)
		}
		if checks < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})))
}

func TestLlamaServerIsFoundAwaitedAndEnded(t *testing.T) {
	t.Setenv(LlamaServerEnv, os.Args[0])
	t.Setenv(fakeEnv, "1")
	var url string
	t.Run("runs", func(t *testing.T) {
		e := StartLlamaServer(t, Options{Model: gguf.Tiny})
		url = e.URL
		res, err := http.Get(url + "/health")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("status %d once started, want 200", res.StatusCode)
		}
	})
	if url == "" {
		t.Fatal("it did not start")
	}
	if _, err := http.Get(url + "/health"); err == nil {
		t.Errorf("%s still answers after its test", url)
	}
}

func TestLlamaServerThatEndsIsNotAwaited(t *testing.T) {
	// Which of its ends is seen first is not told.
	for _, value := range []string{"ends", ""} {
		t.Setenv(fakeEnv, value)
		program := os.Args[0]
		if value == "" {
			program = "false"
		}
		if _, err := startLlamaServer(t, program, Options{Model: gguf.Tiny}.withDefaults()); err == nil || !strings.HasPrefix(err.Error(), "ended ") {
			t.Errorf("%q: %v, want: ended ...", value, err)
		}
	}
}

func TestEngineEndsWithItsParent(t *testing.T) {
	e := Start(t, Options{Model: gguf.Tiny})
	e.stdin.Close() // what the kernel does when this process is killed
	select {
	case <-e.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("it still runs")
	}
}
