package adapters

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/engine/upstream"
)

// Seen is what a server shows of itself whatever kind it is said to be.
type Seen struct {
	// Kind is what it answers as, and By what tells; "": it is none that shows itself.
	Kind engine.Kind
	By   string
	// Models is the status of its model list, Props that of llama-server's /props; 0: it did
	// not come.
	Models, Props int
	// Slots and Ordered are what vLLM says in its development mode alone: how many sequences
	// it runs, and whether it orders by priority; 0 and nil: it does not say.
	Slots   int
	Ordered *bool
	// Date is its time of day, between Sent and Answered; zero: it does not say.
	Date, Sent, Answered time.Time
}

// maxShown bounds a document that is looked at, in bytes.
const maxShown = 16 << 20

// Recognise looks at what a server is, by questions (GET) that change nothing and that all
// servers answer or know nothing of. The error is that it was not reached.
func Recognise(ctx context.Context, cfg engine.Config) (Seen, error) {
	var s Seen
	web, err := upstream.New(cfg, upstream.Hooks{})
	if err != nil {
		return s, err
	}
	defer web.Close()
	s.Sent = time.Now()
	models, err := web.Get(ctx, "/v1/models", upstream.MaxModels)
	s.Answered = time.Now()
	if err != nil {
		return s, err
	}
	s.Models = models.Status
	if t, err := http.ParseTime(models.Header.Get("Date")); err == nil {
		s.Date = t
	}
	get := func(path string) (body []byte, status int) {
		r, err := web.Get(ctx, path, maxShown)
		switch {
		case err != nil:
			return nil, 0
		case r.Status != http.StatusOK:
			return nil, r.Status
		}
		return r.Body, r.Status
	}
	is := func(k engine.Kind, format string, args ...any) { s.Kind, s.By = k, fmt.Sprintf(format, args...) }
	props, status := get("/props")
	s.Props = status
	if p := gjson.ParseBytes(props); p.Get("total_slots").Exists() || p.Get("default_generation_settings").Exists() {
		is(engine.LlamaCpp, "/props tells of its slots")
		return s, nil
	}
	// vLLM has such a page in its development mode, and SGLang always.
	page, _ := get("/server_info")
	info := gjson.ParseBytes(page)
	if !info.Exists() {
		page, _ = get("/get_server_info") // SGLang's former name
		info = gjson.ParseBytes(page)
	}
	switch v := info.Get("vllm_config"); {
	case v.Exists():
		is(engine.VLLM, "/server_info tells of vllm_config")
		s.Slots = max(0, upstream.Number(v.Get("scheduler_config.max_num_seqs")))
		if p := v.Get("scheduler_config.policy"); p.Type == gjson.String {
			on := p.String() == "priority"
			s.Ordered = &on
		}
		return s, nil
	case info.Get("max_total_num_tokens").Exists(), info.Get("disable_radix_cache").Exists():
		is(engine.SGLang, "/server_info tells of its scheduler")
		return s, nil
	}
	metrics, _ := get("/metrics")
	for _, k := range []struct {
		kind engine.Kind
		name string
	}{{engine.VLLM, "vllm:"}, {engine.SGLang, "sglang:"}, {engine.LlamaCpp, "llamacpp:"}} {
		if bytes.HasPrefix(metrics, []byte(k.name)) || bytes.Contains(metrics, []byte("\n"+k.name)) {
			is(k.kind, "/metrics has %s...", k.name)
			break
		}
	}
	return s, nil
}
