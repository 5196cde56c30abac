package live

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"headgate/bench"
	"headgate/identity"
	"headgate/trace"
)

// arm is what stands in front of the engine, or nothing.
type arm struct {
	url     string
	journal string // of a gateway of ours; "" is none
	process *process
	ending  []string

	priority map[string]int               // by class, in the body; nil: none is sent
	headers  map[string]map[string]string // by class
	keys     map[caller]identity.Secret
}

// caller is who a key is for.
type caller struct{ class, tenant string }

func (r *Runner) startArm(ctx context.Context, j *bench.Job, e *engine, dir string) (*arm, error) {
	a := j.Arm
	switch {
	case a.Direct != nil:
		return &arm{url: e.url, priority: a.Direct.Priority}, nil
	case a.Proxy != nil:
		return proxy(ctx, a.Proxy, e.url)
	}
	slots := e.slots
	if a.Slots > 0 {
		slots = a.Slots
	}
	policy := ""
	switch {
	case a.Published != "":
		policy = Published(a.Published, slots, cmp.Or(time.Duration(a.IdleAfter), 2*time.Second), cmp.Or(a.Reopen, "idle"))
	case a.Policy == bench.DefaultPolicy:
		policy = r.Policy
	default:
		b, err := os.ReadFile(j.Plan.Path(a.Policy))
		if err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
		policy = string(b)
	}
	return r.gateway(ctx, j, e, dir, policy, slots, a.Published != "")
}

// proxy starts the operator's own gateway, or attaches to it. A fresh engine is at another
// address each time, so that what is started is told.
func proxy(ctx context.Context, x *bench.Proxy, engine string) (*arm, error) {
	a := &arm{url: strings.TrimSuffix(x.URL, "/"), headers: x.Headers, ending: x.Stop}
	if len(x.Start) > 0 {
		// What answers there before is not what is about to be started.
		if a.answers(ctx) == nil {
			return nil, fmt.Errorf("proxy: %s answers before it is started: allowed is a free address, or no start command", a.url)
		}
		argv := slices.Clone(x.Start)
		for i := range argv {
			argv[i] = strings.ReplaceAll(argv[i], bench.EngineAddress, strings.TrimPrefix(engine, "http://"))
		}
		p, err := start(argv, nil)
		if err != nil {
			return nil, err
		}
		a.process = p
	}
	// A proxy is ready when it answers anything at all to a request for its models.
	within, cancel := context.WithTimeout(ctx, time.Duration(x.Ready))
	defer cancel()
	for {
		err := a.answers(within)
		if p := a.process; p != nil && p.gone() && (len(a.ending) == 0 || p.err != nil) {
			return nil, errors.Join(fmt.Errorf("proxy: it left (%v) and said:\n%s", p.err, p.said()), a.stop())
		}
		if err == nil {
			return a, nil
		}
		if !pause(within, 100*time.Millisecond) {
			return nil, errors.Join(fmt.Errorf("%s is not ready within %v: %w", a.url, x.Ready, err), a.stop())
		}
	}
}

// answers asks a proxy for its models; whatever it says is an answer.
func (a *arm) answers(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/v1/models", nil)
	if err != nil {
		return err
	}
	res, err := asking.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// stop ends what was started for the arm.
func (a *arm) stop() error {
	var err error
	if len(a.ending) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
		defer cancel()
		err = do(ctx, a.ending)
	}
	if a.process != nil {
		err = errors.Join(err, a.process.stop())
	}
	return err
}

// Published is the policy of a published arm: slots are counted and nothing else,
// of four three are interactive's and one batch's, lending begins after an idle time
// and nothing is ended. It is what package sim runs under that name.
func Published(name string, slots int, idleAfter time.Duration, reopen string) string {
	batch := max(slots/4, 1)
	interactive := max(slots-batch, 1)
	queue := "queue: {depth: 0, per_tenant: 0, wait: 0s}"
	base, queued := strings.CutSuffix(name, "-queued")
	if queued {
		queue = "queue: {depth: 100000, per_tenant: 0, wait: 0s}"
	}
	rest := "idle_after: " + idleAfter.String() + ", reopen: " + reopen + ", reclaim: attrition, default_output: 256, " + queue
	class := func(name string, floor, unlent, priority int) string {
		ceiling := ""
		if floor == unlent { // what is never lent is never borrowed against either
			ceiling = fmt.Sprintf("ceiling: {slots: %d}, ", floor)
		}
		return fmt.Sprintf("  - {name: %s, floor: {slots: %d}, unlent: {slots: %d}, %spriority: %d, %s}\n", name, floor, unlent, ceiling, priority, rest)
	}
	if base == "static" {
		return "classes:\n" + class(trace.Interactive, interactive, interactive, 0) + class(trace.Batch, batch, batch, 10)
	}
	return "classes:\n" + class(trace.Interactive, interactive, min(interactive, batch), 0) + class(trace.Batch, batch, 0, 10)
}

// unbound is a KV pool that never binds, for arms that count slots only.
const unbound = 1 << 30

// serving is how `headgate serve` says where it listens.
var serving = regexp.MustCompile(`"msg":"serving".*"listen":"([0-9.:]+)".*"admin":"([0-9.:]+)"`)

// gateway starts `headgate serve` with a policy, a key for every class and tenant
// of the trace, and a journal.
func (r *Runner) gateway(ctx context.Context, j *bench.Job, e *engine, dir, policy string, slots int, slotsOnly bool) (*arm, error) {
	a := &arm{journal: filepath.Join(dir, "journal.jsonl"), keys: map[caller]identity.Secret{}}
	var b strings.Builder
	fmt.Fprintf(&b, "log: {format: json, level: info}\njournal: {file: %q, buffer: 65536}\nkeys:\n", a.journal)
	var callers []caller
	for i := range j.Lines {
		if c := (caller{j.Lines[i].Class, j.Lines[i].Tenant}); !slices.Contains(callers, c) {
			callers = append(callers, c)
		}
	}
	for _, c := range callers {
		key, hash, err := identity.NewKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		a.keys[c] = key
		name, tenant := c.class, "bench"
		if c.tenant != "" {
			name, tenant = c.class+"-"+c.tenant, c.tenant
		}
		fmt.Fprintf(&b, "  - {name: %q, tenant: %q, hash: %q, classes: [%q], default: %q}\n", name, tenant, hash, c.class, c.class)
	}
	fmt.Fprintf(&b, "pools:\n  - name: bench\n    engines:\n      - {name: engine, kind: %s, url: %q, slots: %d, priority: %t, observe_every: 100ms", e.kind, e.url, slots, e.orders)
	switch {
	case slotsOnly:
		fmt.Fprintf(&b, ", kv_tokens: %d, max_context: %d", unbound, max(e.maxModelLen, 1<<17))
	case e.kvTokens > 0 && !e.simulated: // a simulated one tells it
		fmt.Fprintf(&b, ", kv_tokens: %d", e.kvTokens)
	}
	b.WriteString("}\n")
	for line := range strings.Lines(policy) {
		b.WriteString("    " + strings.TrimRight(line, "\n") + "\n")
	}
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, err
	}
	p, said, err := startSaying(ctx, []string{r.Headgate, "serve", "-c", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--watch=false"}, serving)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w\nof the configuration\n%s", err, b.String())
	}
	a.url, a.process = "http://"+said[1], p
	for {
		if _, err = get(ctx, "http://"+said[2]+"/readyz"); err == nil {
			return a, nil
		}
		if p.gone() || !pause(ctx, 20*time.Millisecond) {
			return nil, errors.Join(fmt.Errorf("gateway: %w", err), ctx.Err(), a.stop())
		}
	}
}

// sign tells the arm whose request it is.
func (a *arm) sign(h http.Header, c caller) {
	if key, ok := a.keys[c]; ok {
		h.Set("Authorization", "Bearer "+key.Reveal())
	}
	for name, value := range a.headers[c.class] {
		h.Set(name, value)
	}
}
