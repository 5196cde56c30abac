// Command mutants plants faults, one at a time, in what keeps a fleet safe, and sees
// that histories find each. A fault is a change of the source that go build is told of
// by -overlay: nothing of it is in the code that runs.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// mutant is one fault: in file, old, which is there once, becomes new.
type mutant struct {
	name, file, old, new string
}

var mutants = []mutant{
	{"a raise out of a shrink that is not acknowledged", "control/allocator.go",
		"func (a *Allocator) bind(l *life) {\n\tcopy(l.bound, l.used)\n\tfor i := range l.owed {",
		"func (a *Allocator) bind(l *life) {\n\tcopy(l.bound, l.used)\n\tfor i := max(len(l.owed)-1, 0); i < len(l.owed); i++ {"},
	{"the occupancy of an acknowledgement is ignored", "control/allocator.go",
		"\tcopy(l.bound, l.used)\n", "\tclear(l.bound)\n"},
	{"a report counts whatever its number", "control/allocator.go",
		"l == nil || r.Seq <= l.seq {", "l == nil {"},
	{"an acknowledgement of any grant acknowledges the last", "control/allocator.go",
		"o.epoch == r.Epoch && o.rev < r.Rev\n", "o.epoch == r.Epoch && o.rev < l.rev\n"},
	{"nothing is reserved after a lease", "control/allocator.go",
		"l.until = a.now + Time(l.residual)", "l.until = a.now"},
	{"no more than the least is reserved after a lease", "control/allocator.go",
		"l.until = a.now + Time(l.residual)", "l.until = a.now + Time(a.cfg.Residual)"},
	{"a new leader reserves nothing for who is gone", "control/allocator.go",
		"l.gone, l.until = false, true, a.now, a.now+Time(l.residual)", "l.gone, l.until = false, false, a.now, a.now"},
	{"a new leader does not heed the bound of a grant", "control/allocator.go",
		"l.survives[n] = most(c.Bound, c.Survival), ", "l.survives[n] = c.Survival, "},
	{"a new leader takes an earlier acknowledgement for that of the last grant", "control/allocator.go",
		"{epoch: g.Epoch, rev: g.Rev - 1, lease: g.Lease, amounts: before}", "{lease: g.Lease, amounts: before}"},
	{"a new lease ends what the life was bound by", "control/allocator.go",
		"l.lease, l.rev = m.Lease, 0\n", "l.lease, l.rev, l.owed = m.Lease, 0, nil\n\t\ta.bind(l)\n"},
	{"what survives is not withheld", "control/allocator.go",
		"left = minus(left, most(l.bound[n], a.survival(l, n)))", "left = minus(left, l.bound[n])"},
	{"what a replica says that an engine has is not heeded", "control/allocator.go",
		"found := a.pool.Engines[c.engine].Total[r]\n", "found := a.pool.Engines[c.engine].Total[r]\n\t\tif found > 0 {\n\t\t\tcontinue\n\t\t}\n"},
	{"a gauge of any time shows what a life has left", "control/allocator.go",
		"if l.live || l.echo == 0 || r.Rev <= l.echo {", "if l.live {"},
	{"a life that is over is kept for ever", "control/allocator.go",
		"over := a.now >= l.until\n", "over := false\n"},
	{"raises go up to bounds that may be another's", "control/decide.go",
		"its[r] = l.survives[c][r]", "its[r] = max(its[r], l.survives[c][r])"},
	{"what survives of a new replica may be another's still", "control/decide.go",
		"survives[r] = min(survives[r], l.survives[c][r])", "survives[r] = max(survives[r], l.survives[c][r])"},
	{"what is free is given twice", "control/decide.go",
		"\t\t\tfree = minus(free, minus(over(plus(now[i][c], up), its), over(now[i][c], its)))\n", ""},
	{"the total of a ceiling is not heeded", "control/table.go",
		`share("", c.Name, c.Ceiling); there {`, `share("", c.Name, c.Ceiling); there && withheld == survival {`},
	{"a table without a lease in force is one without an end", "control/table.go",
		"if t.Until = until; !ok {", "if t.Until = until; g == nil {"},
	{"a grant of an earlier epoch is taken", "control/holder.go",
		"case g.Epoch < h.epoch:", "case false:"},
	{"a grant of an earlier revision is taken", "control/holder.go",
		"case g.Epoch == h.epoch && g.Rev <= h.rev:", "case g.Epoch == h.epoch && g.Rev == h.rev:"},
	{"a grant is in force under another lease", "control/holder.go",
		"h.grant != nil && h.grant.Lease == h.lease && now < h.until", "h.grant != nil && now < h.until"},
	{"no margin for the clock's drift", "control/holder.go",
		"sent+Time(float64(ttl)*(1-h.drift))", "sent+Time(ttl)"},
	{"what is overdue goes on", "control/holder.go",
		"\t\tends = append(ends, i)\n", ""},
	{"what a replica asks to be reserved counts before a grant says so", "control/holder.go",
		"float64(h.grant.Residual)*", "float64(max(h.grant.Residual, h.residual))*"},
	{"what is overdue is ended when it should be over, by a clock that may be slow", "control/holder.go",
		"*(1-h.drift)/(1+h.drift))-Time(EndTime), 0)", "), 0)"},
	{"a lease counts from the answer's receipt", "control/fleetsim/replica.go",
		"r.holder.Leased(lease, sent, ", "r.holder.Leased(lease, r.clock(), "},
	{"a renewal gives a core more than the lease", "admission/share.go",
		"s.until = max(until, 1)", "s.until = max(until+Time(5e8), 1)"},
	{"a core keeps its share after its lease", "admission/share.go",
		"\tif c.share.expired {\n\t\treturn Of(en.spec.Slots, en.spec.KV).sub(en.spec.Survival)\n\t}\n", ""},
	{"what others' work has left of an engine is not told", "control/tell.go",
		"a.accounts[e].beside != a.beside(e)", "e < 0"},
	{"news of a term that is over count", "control/tell.go",
		"n.Epoch < h.epoch || n.Epoch == h.epoch && n.Seq <= h.seq || g != nil && n.Epoch < g.Epoch", "n.Seq <= h.seq"},
	{"the store writes for a leader whose term is over", "control/fleetsim/store.go",
		"if s.leader != nil && s.epoch == epoch {", "if s.leader != nil {"},
}

func main() {
	seeds := flag.Int("seeds", 3000, "how many histories are tried for each")
	only := flag.String("run", "", "a pattern of the names of those that are planted")
	flag.Parse()
	match := regexp.MustCompile(*only)
	began := time.Now()
	dir, err := os.MkdirTemp("", "fleetsim")
	if err != nil {
		fatal(err)
	}
	defer os.RemoveAll(dir)
	caught, all := 0, 0
	for i := range mutants {
		m := &mutants[i]
		if !match.MatchString(m.name) {
			continue
		}
		all++
		what, err := try(dir, m, *seeds)
		switch {
		case err != nil:
			fmt.Printf("%-78s %v\n", m.name, err)
		case what == "":
			fmt.Printf("%-78s SURVIVED %d histories\n", m.name, *seeds)
		default:
			caught++
			fmt.Printf("%-78s %s\n", m.name, what)
		}
	}
	fmt.Printf("in %s\ncaught: %d of %d\n", time.Since(began).Round(time.Second), caught, all)
	if caught < all {
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(1)
}

var violation = regexp.MustCompile(`(?m)^violation: (seed \d+, step \d+, at [\d.]+ s, check \d)`)

// try plants a fault and returns by what it was found first; "" if it was not.
func try(dir string, m *mutant, seeds int) (string, error) {
	path, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("its place is there %d times in %s, and should be once", n, m.file)
	}
	changed, overlay, bin := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "run")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./control/fleetsim/run").CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not build: %v\n%s", err, out)
	}
	out, err := exec.Command(bin, "-seeds", fmt.Sprint(seeds), "-first", "-q").CombinedOutput()
	found := violation.FindSubmatch(out)
	switch {
	case found != nil:
		return string(found[1]), nil
	case err != nil:
		return "", fmt.Errorf("%v: %s", err, out)
	}
	return "", nil
}
