package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var rewrite = flag.Bool("rewrite", false, "rewrite goldens")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"headgate": main})
}

// TestScripts runs the command as its users do. Beside testscript's own there
// are these commands:
//
//	start NAME PATTERN ARGS...  runs headgate until its output so far matches;
//	                            $NAME_1, $NAME_2 are the pattern's groups, and the
//	                            output so far is in the file NAME.out
//	stop NAME                   sends it SIGTERM; it has to leave with status 0
//	cut NAME                    kills it, without a chance to clean up
//	get STATUS URL              has to be answered so; the body is the file body
//	await STATUS URL PATTERN    is asked until it is answered so, with such a body
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

func runScripts(t *testing.T, dir string) {
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"start": startInBackground, "stop": stopInBackground, "cut": cutInBackground, "get": get, "await": await,
		},
		Setup: func(env *testscript.Env) error {
			env.Values[backgroundsKey{}] = map[string]*background{}
			return nil
		},
		RequireUniqueNames: true,
		UpdateScripts:      *rewrite,
	})
}

// backgroundsKey is where a script's environment has what it has started.
type backgroundsKey struct{}

// patience bounds the wait for what a program says. It is no measure of speed.
const patience = time.Minute

type background struct {
	cmd  *exec.Cmd
	read chan struct{} // closed at the end of its output
}

func startInBackground(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME PATTERN ARGS...")
	}
	name, pattern := args[0], regexp.MustCompile(args[1])
	path, err := exec.LookPath("headgate")
	ts.Check(err)
	b := &background{cmd: exec.Command(path, args[2:]...), read: make(chan struct{})}
	b.cmd.Dir = ts.Getenv("WORK")
	r, w, err := os.Pipe()
	ts.Check(err)
	b.cmd.Stdout, b.cmd.Stderr = w, w
	ts.Check(b.cmd.Start())
	ts.Check(w.Close())
	matched := make(chan []string, 1)
	var said strings.Builder
	go func() {
		defer close(b.read)
		defer close(matched)
		lines := bufio.NewScanner(r)
		for found := false; lines.Scan(); {
			if found {
				continue // only read on, so that it can write on
			}
			said.WriteString(lines.Text() + "\n")
			if m := pattern.FindStringSubmatch(said.String()); m != nil {
				found = true
				matched <- m
			}
		}
	}()
	ts.Defer(func() {
		_ = b.cmd.Process.Kill() // in vain if the script has stopped it
		_ = b.cmd.Wait()
		<-b.read
		_ = r.Close()
	})
	var m []string
	select {
	case m = <-matched:
	case <-time.After(patience):
	}
	if m == nil {
		_ = b.cmd.Process.Kill()
		<-b.read
		ts.Fatalf("headgate %v never said %q:\n%s", args[2:], args[1], said.String())
	}
	for i, group := range m[1:] {
		ts.Setenv(fmt.Sprintf("%s_%d", name, i+1), group)
	}
	ts.Check(os.WriteFile(ts.MkAbs(name+".out"), []byte(said.String()), 0o600))
	ts.Value(backgroundsKey{}).(map[string]*background)[name] = b
}

func stopInBackground(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stop NAME")
	}
	b := ts.Value(backgroundsKey{}).(map[string]*background)[args[0]]
	if b == nil {
		ts.Fatalf("%s does not run", args[0])
	}
	ts.Check(b.cmd.Process.Signal(syscall.SIGTERM))
	ts.Check(b.cmd.Wait())
}

func cutInBackground(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: cut NAME")
	}
	b := ts.Value(backgroundsKey{}).(map[string]*background)[args[0]]
	if b == nil {
		ts.Fatalf("%s does not run", args[0])
	}
	ts.Check(b.cmd.Process.Kill())
	_ = b.cmd.Wait() // says that it was killed
}

func get(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: get STATUS URL")
	}
	if status, body := answerOf(ts, args[1]); status != args[0] {
		ts.Fatalf("status %s, want %s: %s", status, args[0], body)
	}
}

// answerOf asks once. The body is in the file body, too.
func answerOf(ts *testscript.TestScript, url string) (status string, body []byte) {
	res, err := http.Get(url)
	ts.Check(err)
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(res.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("body"), body, 0o600))
	return fmt.Sprint(res.StatusCode), body
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: await STATUS URL PATTERN")
	}
	pattern := regexp.MustCompile(args[2])
	over := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status, body := answerOf(ts, args[1])
		if status == args[0] && pattern.Match(body) {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			ts.Fatalf("%s never said %s %q: %s %s", args[1], args[0], args[2], status, body)
		}
	}
}
