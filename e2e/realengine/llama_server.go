package realengine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// LlamaServerEnv names the environment variable that holds the path of a
// llama-server binary to test against as well.
const LlamaServerEnv = "LLAMA_SERVER"

// loadLimit bounds the time from a llama-server's start to its first healthy answer.
const loadLimit = time.Minute

// keeper runs its arguments until they or its standard input end: llama-server
// does not watch its parent by itself.
const keeper = `exec 3<&0
"$@" </dev/null 3<&- & child=$!
{ cat <&3; kill -9 $child; } >/dev/null 2>&1 & watch=$!
wait $child; status=$?
kill $watch 2>/dev/null
exit $status`

var listening = regexp.MustCompile(`listening on (http://[0-9.:]+)`)

// StartLlamaServer runs the llama-server that LLAMA_SERVER names until the test
// ends, with the same model, slots and context per slot as Start, and returns
// once it takes requests. Without the variable the test is skipped: no run is
// obliged to have a llama-server.
func StartLlamaServer(t testing.TB, o Options) *Engine {
	t.Helper()
	binary := os.Getenv(LlamaServerEnv)
	if binary == "" {
		t.Skipf("%s names no llama-server", LlamaServerEnv)
	}
	e, err := startLlamaServer(t, binary, o.withDefaults())
	if err != nil {
		t.Fatalf("llama-server %v:\n%s", err, e.log)
	}
	return e
}

func startLlamaServer(t testing.TB, binary string, o Options) (*Engine, error) {
	t.Helper()
	name := "random-llama"
	if o.Model.Name != "" {
		name = o.Model.Name
	}
	// --ctx-size is the whole pool, which --parallel divides among the slots, or
	// lets each of them have.
	args := []string{
		"-c", keeper, "sh", binary,
		"--host", "127.0.0.1", "--port", "0", "--model", modelFile(t, o.Model), "--alias", name,
		"--parallel", strconv.Itoa(o.Slots), "--ctx-size", strconv.Itoa(o.Slots * o.Ctx),
		"--batch-size", strconv.Itoa(o.Batch), "--threads", strconv.Itoa(o.Threads), "--metrics",
	}
	if o.Unified {
		args = append(args, "--kv-unified")
	}
	if o.Embeddings {
		args = append(args, "--embeddings", "--pooling", "mean")
	}
	cmd := exec.Command("sh", args...)
	// Its log tells the port. A pipe of the system's, since os/exec would wait
	// for a writer of its own until every descendant has closed it.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	e := &Engine{Model: name, Slots: o.Slots, Ctx: o.Ctx}
	e.start(t, cmd)
	write.Close()

	url := make(chan string, 1)
	go func() {
		defer read.Close()
		defer close(url)
		lines := bufio.NewScanner(io.TeeReader(read, e.log))
		for found := false; lines.Scan(); {
			if m := listening.FindSubmatch(lines.Bytes()); m != nil && !found {
				url <- string(m[1])
				found = true
			}
		}
	}()
	ctx, cancel := context.WithTimeoutCause(t.Context(), loadLimit, fmt.Errorf("did not load within %v", loadLimit))
	defer cancel()
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	go func() {
		select {
		case <-e.exited:
			ended(errors.New("ended while it loaded"))
		case <-ctx.Done():
		}
	}()
	select {
	case found, ok := <-url:
		if !ok {
			return e, errors.New("ended before it listened")
		}
		e.URL = found
	case <-ctx.Done():
		return e, context.Cause(ctx)
	}
	return e, healthy(ctx, e.URL)
}

// healthy returns once url answers its health check, or ctx ends, then with the
// cause. While it loads
// its model llama-server answers 503, or not yet at all.
func healthy(ctx context.Context, url string) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
