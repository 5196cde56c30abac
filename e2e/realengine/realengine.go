// Package realengine starts real inference engines for end-to-end tests: the
// project's own server around llama.cpp (e2e/engine), and llama-server where one
// is present. Both load the same generated model.
//
// Nothing is installed and no port is chosen beforehand: the child binds port 0
// and says where it listens. It ends with the test, and with the test process
// should that be killed.
package realengine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"headgate/e2e/engine/gguf"
	"headgate/e2e/need"
)

// Options say how an engine is started. Zero fields take the default that their
// comment names.
type Options struct {
	Model             gguf.Options
	Slots             int  // sequences run at once, 4
	Ctx               int  // tokens of one sequence, prompt and output, 2048
	Batch             int  // tokens evaluated in one step, 256
	Threads           int  // 1
	Priority          bool // order the engine's queue by the request's priority, lower first
	PerRequestMetrics bool // report each request's queue time, as vLLM does on request
	Unified           bool // llama-server: one KV pool, of which each slot may take all
	Embeddings        bool // llama-server: embed, and do nothing else
}

func (o Options) withDefaults() Options {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Slots, 4)
	def(&o.Ctx, 2048)
	def(&o.Batch, 256)
	def(&o.Threads, 1)
	return o
}

// Engine is a running engine.
type Engine struct {
	URL   string // without a trailing slash
	Model string // the id to ask for
	Slots int
	Ctx   int // tokens of one sequence

	cmd    *exec.Cmd
	stdin  io.Closer
	log    *logBuffer
	exited chan struct{} // closed once cmd has been waited for
}

// Start runs the project's real engine until the test ends, and returns once it
// takes requests. Without node or the engine's npm packages the test is skipped
// (see package need).
func Start(t testing.TB, o Options) *Engine {
	t.Helper()
	o = o.withDefaults()
	node := need.Tool(t, "node")
	dir := filepath.Join(root(t), "e2e", "engine")
	need.NodeModules(t, dir)

	args := []string{
		"main.cjs", "--exit-with-stdin", "--model", modelFile(t, o.Model),
		"--slots", strconv.Itoa(o.Slots), "--ctx", strconv.Itoa(o.Ctx),
		"--batch", strconv.Itoa(o.Batch), "--threads", strconv.Itoa(o.Threads),
	}
	if o.Priority {
		args = append(args, "--priority")
	}
	if o.PerRequestMetrics {
		args = append(args, "--per-request-metrics")
	}
	cmd := exec.Command(node, args...)
	cmd.Dir = dir
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Slots: o.Slots, Ctx: o.Ctx}
	e.start(t, cmd)

	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatalf("engine: no ready line: %v\n%s", err, e.log)
	}
	var ready struct{ URL, Model string }
	if err := json.Unmarshal(line, &ready); err != nil {
		t.Fatalf("engine: ready line %q: %v", line, err)
	}
	e.URL, e.Model = ready.URL, ready.Model
	return e
}

// start runs cmd and arranges for its end.
func (e *Engine) start(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	// Held open, never written: its end tells the child that this process is gone.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.cmd, e.stdin, e.log, e.exited = cmd, stdin, &logBuffer{}, make(chan struct{})
	if cmd.Stderr == nil {
		cmd.Stderr = e.log
	}
	// A group of its own, so that a signal reaches what cmd has started as well.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("engine: %v", err)
	}
	t.Cleanup(func() {
		e.Kill()
		if t.Failed() {
			t.Logf("engine's log:\n%s", e.log)
		}
	})
	go func() {
		cmd.Wait()
		close(e.exited)
	}()
}

// Kill ends the engine the hard way, and returns once it is gone.
func (e *Engine) Kill() {
	select {
	case <-e.exited: // the process id may be another's by now
	default:
		syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
	}
	e.stdin.Close()
	<-e.exited
}

// Terminate asks the engine to end, as a service manager does, and returns a
// channel that is closed once it is gone.
func (e *Engine) Terminate() (<-chan struct{}, error) {
	return e.exited, syscall.Kill(-e.cmd.Process.Pid, syscall.SIGTERM)
}

var modelFiles sync.Mutex

// modelFile returns the path of a model, which is written only once a machine:
// its name holds all that it depends on.
func modelFile(t testing.TB, o gguf.Options) string {
	t.Helper()
	modelFiles.Lock()
	defer modelFiles.Unlock()
	dir := filepath.Join(root(t), ".cache", "gguf")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, gguf.FileName(o))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := gguf.WriteFile(path, o); err != nil {
		t.Fatal(err)
	}
	return path
}

// root returns the module's root: the nearest folder above with a go.mod.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = up
	}
}

// logBuffer keeps the end of what an engine wrote.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const logLimit = 256 << 10

var _ io.Writer = (*logBuffer)(nil)

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Write(p)
	if over := l.buf.Len() - logLimit; over > 0 {
		l.buf.Next(over)
	}
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() == 0 {
		return "(it wrote nothing)"
	}
	return l.buf.String()
}
