package live

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Bounds of what is waited for from a process.
const (
	sayLimit  = 30 * time.Second // until it says where it listens
	stopLimit = 20 * time.Second // from SIGTERM to SIGKILL
	keptLines = 20               // of its output, for errors
)

// process is one that we started.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // of Wait, once exited

	mu    sync.Mutex
	lines []string      // the last ones
	look  func(string)  // is shown each line; nil: nobody looks
	read  chan struct{} // closed when all is read
}

// start runs a command. find, if not nil, is shown each line of its output.
func start(argv []string, find func(line string)) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{}), read: make(chan struct{}), look: find}
	if argv[0] == "/proc/self/exe" {
		p.cmd.Args[0] = os.Args[0] // a program may go by its name, and that is not one
	}
	p.cmd.SysProcAttr = ours()
	// A pipe of our own: os/exec would wait until every descendant has closed its.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	started := make(chan error)
	go func() {
		// The death signal comes when the starting thread ends, so it has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.exited)
		}
	}()
	err = <-started
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		defer close(p.read)
		p.scan(r)
	}()
	go func() {
		<-p.exited
		// What it has started may go on and hold the pipe open.
		_ = r.SetReadDeadline(time.Now().Add(time.Second))
		<-p.read
		_ = r.Close()
	}()
	return p, nil
}

func (p *process) scan(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			p.mu.Lock()
			p.lines = append(p.lines, line)
			p.lines = p.lines[max(0, len(p.lines)-keptLines):]
			p.mu.Unlock()
			if p.look != nil {
				p.look(line)
			}
		}
		if err != nil {
			return
		}
	}
}

// said is the end of its output.
func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// startSaying starts a command and waits until a line of its output matches.
func startSaying(ctx context.Context, argv []string, pattern *regexp.Regexp) (*process, []string, error) {
	found := make(chan []string, 1)
	p, err := start(argv, func(line string) {
		if m := pattern.FindStringSubmatch(line); m != nil {
			select {
			case found <- m:
			default:
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	late := time.NewTimer(sayLimit)
	defer late.Stop()
	select {
	case m := <-found:
		return p, m, nil
	case <-p.exited:
		<-p.read
		err = fmt.Errorf("%s left (%v) and said:\n%s", argv[0], p.err, p.said())
	case <-late.C:
		err = fmt.Errorf("%s did not say where it listens within %v; it said:\n%s", argv[0], sayLimit, p.said())
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, nil, errors.Join(err, p.stop())
}

// gone tells whether it has ended.
func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// stop ends the process and what it has started: politely, and after a while not.
func (p *process) stop() error {
	if !p.gone() { // else its id may be another's by now
		terminate(p.cmd.Process)
	}
	late := time.NewTimer(stopLimit)
	defer late.Stop()
	select {
	case <-p.exited:
		return nil
	case <-late.C:
	}
	kill(p.cmd.Process)
	<-p.exited
	return fmt.Errorf("%s did not end within %v of SIGTERM and was killed; it said:\n%s", p.cmd.Path, stopLimit, p.said())
}

// do runs a command to its end.
func do(ctx context.Context, argv []string) error {
	if len(argv) == 0 {
		return nil
	}
	p, err := start(argv, nil)
	if err != nil {
		return err
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		return errors.Join(ctx.Err(), p.stop())
	}
	if p.err != nil {
		<-p.read
		return fmt.Errorf("%s: %w: it said:\n%s", strings.Join(argv, " "), p.err, p.said())
	}
	return nil
}

// pause waits; false is that ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
