package headgate

import (
	"bufio"
	"bytes"
	"io"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/proctest"
)

// patience bounds every wait for a condition. It is no measure of speed: only a
// broken process needs as long.
const patience = 30 * time.Second

// process is a running headgate, whichever command it runs.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	out    *output // standard output and standard error, line by line
	exited chan struct{}
	err    error // of Wait, once exited
	stop   sync.Once
	killed bool // by the test
}

// start runs headgate with args until the test ends.
func start(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(Binary(t), args...), out: newOutput(), exited: make(chan struct{})}
	p.cmd.SysProcAttr = proctest.EndsWithParent()
	p.cmd.Stdout, p.cmd.Stderr = p.out.writer(), p.out.writer()
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("headgate: %v", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		p.out.close()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.Terminate()
		p.Wait()
		if t.Failed() {
			t.Logf("headgate %v said:\n%s", args, p.out)
		}
	})
	return p
}

// Terminate sends SIGTERM, once; further calls do nothing.
func (p *process) Terminate() {
	p.stop.Do(func() {
		select {
		case <-p.exited: // the process id may be another's by now
		default:
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
	})
}

// Kill ends the process without a chance to clean up, and waits for its end.
func (p *process) Kill() {
	p.killed = true
	p.stop.Do(func() { _ = p.cmd.Process.Kill() })
	<-p.exited
}

// PID is the process's id.
func (p *process) PID() int { return p.cmd.Process.Pid }

// Suspend stops the process where it is, with its connections open; Resume lets it go
// on.
func (p *process) Suspend() { _ = proctest.Suspend(p.cmd.Process) }
func (p *process) Resume()  { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Wait waits for the process's end and fails the test unless its status is 0.
func (p *process) Wait() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(2 * patience): // longer than any drain in a test
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.t.Errorf("headgate did not leave within %v of being told to", 2*patience)
	}
	if p.err != nil && !p.killed {
		p.t.Errorf("headgate left with %v, want status 0", p.err)
	}
}

// Output returns what the process has written so far, on standard output and
// standard error.
func (p *process) Output() string { return p.out.String() }

// AwaitOutput waits until a line matches the pattern, and returns its
// submatches.
func (p *process) AwaitOutput(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(patience)
	for from := 0; ; {
		line, more, ok := p.out.line(from)
		if ok {
			if m := re.FindStringSubmatch(line); m != nil {
				return m
			}
			from++
			continue
		}
		select {
		case <-more:
		case <-p.exited:
			if _, _, ok := p.out.line(from); !ok {
				p.t.Fatalf("headgate left (%v) and never said %q:\n%s", p.err, pattern, p.out)
			}
		case <-deadline:
			p.t.Fatalf("headgate did not say %q within %v:\n%s", pattern, patience, p.out)
		}
	}
}

// output collects lines and tells who waits for the next one.
type output struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed at the next line
	pipes []*io.PipeWriter
	done  sync.WaitGroup
}

func newOutput() *output { return &output{more: make(chan struct{})} }

// writer returns the end that a process writes to.
func (o *output) writer() io.Writer {
	r, w := io.Pipe()
	o.pipes = append(o.pipes, w)
	o.done.Go(func() {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			o.mu.Lock()
			o.lines = append(o.lines, lines.Text())
			close(o.more)
			o.more = make(chan struct{})
			o.mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, r)
	})
	return w
}

// close waits until all that was written has become lines.
func (o *output) close() {
	for _, w := range o.pipes {
		_ = w.Close()
	}
	o.done.Wait()
}

// line returns line i, or the channel that is closed at the next line.
func (o *output) line(i int) (line string, more <-chan struct{}, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i < len(o.lines) {
		return o.lines[i], nil, true
	}
	return "", o.more, false
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b bytes.Buffer
	for _, l := range o.lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return b.String()
}
