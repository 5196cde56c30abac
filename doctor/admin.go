package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"headgate/engine/upstream"
)

// Running is a gateway that runs, by its admin listener.
type Running struct {
	URL    string
	Client *http.Client
	Header http.Header // with the key, if there is one
	// Version of this program.
	Version string
	// Told tells that somebody has named it, so that it has to be there.
	Told bool
	// Engines are those of the configuration that it is believed to run with, as POOL/ENGINE;
	// nil: there is none.
	Engines []string

	once  sync.Once
	found finding
}

// finding is what was found at the listener's address.
type finding struct {
	there          bool // a gateway answers
	refused        int  // by this status, when it was asked for its metrics
	metrics        upstream.Metrics
	date           time.Time
	sent, answered time.Time
	err            error
}

// mostAnswer bounds an answer, in bytes.
const mostAnswer = 16 << 20

// names are the metrics that are looked at.
var names = []string{"headgate_build_info", "process_max_fds", "process_open_fds"}

// look asks once; who asks later has the same answer.
func (g *Running) look(ctx context.Context) *finding {
	g.once.Do(func() {
		f := &g.found
		res, sent, answered, err := fetch(ctx, g.Client, g.URL+"/healthz", nil)
		if err != nil {
			f.err = err
			return
		}
		body, _ := io.ReadAll(io.LimitReader(res.Body, 64))
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != "ok" {
			f.err = fmt.Errorf("GET %s/healthz: status %d, and it is no gateway's", g.URL, res.StatusCode)
			return
		}
		f.date, f.sent, f.answered = Date(res.Header), sent, answered
		status, text, err := g.get(ctx, "/metrics")
		switch {
		case err != nil:
			f.err = err
		case status == http.StatusUnauthorized, status == http.StatusForbidden:
			f.there, f.refused = strings.Contains(string(text), "admin"), status
			f.err = fmt.Errorf("GET /metrics: status %d: %s", status, strings.TrimSpace(string(text)))
		default:
			if f.metrics, f.err = upstream.ParseMetrics(text, names...); f.err == nil {
				if f.there = len(f.metrics["headgate_build_info"]) > 0; !f.there {
					f.err = fmt.Errorf("GET %s/metrics: status %d, and it is no gateway's", g.URL, status)
				}
			}
		}
	})
	return &g.found
}

// get asks with the key.
func (g *Running) get(ctx context.Context, path string) (status int, body []byte, err error) {
	res, _, _, err := fetch(ctx, g.Client, g.URL+path, g.Header)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(res.Body, mostAnswer))
	return res.StatusCode, body, err
}

// There tells whether a gateway answers.
func (g *Running) There(ctx context.Context) bool { return g.look(ctx).there }

// Files is how many files it may open; 0: it does not say.
func (g *Running) Files(ctx context.Context) int {
	return max(0, upstream.Whole(g.look(ctx).metrics.Sum("process_max_fds")))
}

// Check looks at what it says of itself.
func (g *Running) Check() Check { return Check{Of: "gateway " + g.URL, Run: g.run} }

const (
	// replicaClock is how far clocks of replicas, and of this machine, may be apart: keys and
	// tokens expire by them, and records of several are laid beside each other.
	replicaClock = 2 * time.Second
	// observedOld is how old what is known of an engine may be. A reading that fails is made
	// again, each a few seconds at most.
	observedOld = 15 * time.Second
)

func (g *Running) run(ctx context.Context, r *Reporter) {
	f := g.look(ctx)
	switch {
	case f.refused != 0:
		r.Found(AdminKey, f.err.Error(), "give a key of admin.keys with role admin or read, in HEADGATE_ADMIN_KEY")
		return
	case f.err != nil && !g.Told && !f.there:
		return // none runs, which nobody has claimed
	case f.err != nil && untrusted(f.err):
		r.Found(AdminTLS, f.err.Error(), "name its authority by --cacert, and write https:// where it speaks that")
		return
	case f.err != nil:
		r.Found(AdminAway, f.err.Error(), "start the gateway (headgate serve -c FILE), or name its admin listener by --admin")
		return
	}
	if off, ok := skew(f.date, f.sent, f.answered, replicaClock); ok {
		r.Found(AdminClock, off, "have both machines keep their time (chrony, systemd-timesyncd)")
	}
	g.ready(ctx, r)
	for _, m := range f.metrics["headgate_build_info"] {
		if v := upstream.Label(m, "version"); v != g.Version {
			r.Found(AdminVersion, fmt.Sprintf("it is %s, and this is %s", v, g.Version), "restart it after an update, and use the program of its version")
		}
	}
	if open, most := f.metrics.Sum("process_open_fds"), f.metrics.Sum("process_max_fds"); open > 0 && most > 0 && open > most*9/10 {
		r.Found(AdminFiles, fmt.Sprintf("%.0f of %.0f are open", open, most), "raise the limit where it is started (LimitNOFILE= in its unit, ulimit -n), or lower limits.max_connections")
	}
	g.observed(ctx, r)
}

// ready asks whether it serves.
func (g *Running) ready(ctx context.Context, r *Reporter) {
	status, text, err := g.get(ctx, "/readyz")
	switch {
	case err != nil:
		r.Found(AdminNotReady, err.Error(), "see its log")
	case status != http.StatusOK:
		r.Found(AdminNotReady, fmt.Sprintf("/readyz: status %d: %s", status, strings.TrimSpace(string(text))), "see the findings about its engines; its log has when it began")
	default:
		for line := range strings.Lines(string(text)) {
			if trouble, ok := strings.CutPrefix(line, "but "); ok {
				r.Found(AdminTrouble, "/readyz: "+strings.TrimSpace(trouble), "see what is said of it in docs/operations.md; a switch is turned off where it was turned on")
			}
		}
	}
}

// observed looks at how old what it knows of engines is.
func (g *Running) observed(ctx context.Context, r *Reporter) {
	status, body, err := g.get(ctx, "/debug/engines")
	var pools map[string][]struct {
		Name  string `json:"name"`
		State string `json:"state"`
		Age   int64  `json:"sample_age_ms"`
		Error string `json:"error"`
	}
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal(body, &pools)
	}
	if err != nil || status != http.StatusOK {
		if !errors.Is(err, context.DeadlineExceeded) && status == http.StatusNotFound {
			return // a controller, which has none
		}
		r.Found(AdminAway, fmt.Sprintf("/debug/engines: status %d, %v", status, err), "see its log")
		return
	}
	var all, has []string
	for pool, engines := range pools {
		for _, e := range engines {
			has = append(has, pool+"/"+e.Name)
			if age := time.Duration(e.Age) * time.Millisecond; e.Age < 0 || age > observedOld {
				text := fmt.Sprintf("%s: heard of %v ago", e.Name, age.Round(time.Second))
				if e.Age < 0 {
					text = e.Name + ": never heard of"
				}
				if e.Error != "" {
					text += ": " + e.Error
				}
				all = append(all, text)
			}
		}
	}
	slices.Sort(all)
	slices.Sort(has)
	if configured := slices.Sorted(slices.Values(g.Engines)); g.Engines != nil && !slices.Equal(has, configured) {
		r.Found(AdminOther, fmt.Sprintf("it has %s; the configuration has %s", strings.Join(has, ", "), strings.Join(configured, ", ")),
			"if it is another gateway, give this one an admin.listen of its own; if the file has changed since, have it read again (kill -HUP)")
	}
	if len(all) > 0 {
		r.Found(ObservedOld, strings.Join(all, "\n"), "see whether the gateway's machine reaches the engine, and the findings about it")
	}
}

// Replica looks at the clock of another replica, by an answer of its listener for clients.
func Replica(name, url string, client *http.Client) Check {
	return Check{Of: "replica " + name, Run: func(ctx context.Context, r *Reporter) {
		res, sent, answered, err := fetch(ctx, client, url+"/", nil)
		if err != nil {
			r.Found(ReplicaAway, err.Error(), "see that control.forward.address is where others reach it, and that it runs")
			return
		}
		_ = res.Body.Close()
		if off, ok := skew(Date(res.Header), sent, answered, replicaClock); ok {
			r.Found(ReplicaClock, off, "have all replicas keep their time (chrony, systemd-timesyncd)")
		}
	}}
}

// Clock looks at a clock that was read to within some time.
func (r *Reporter) Clock(k *Kind, of string, read, sent, answered time.Time, within time.Duration) {
	if off, ok := skewOf(read, sent, answered, within, replicaClock); ok {
		r.FoundOf(of, k, off, "have both machines keep their time (chrony, systemd-timesyncd)")
	}
}
