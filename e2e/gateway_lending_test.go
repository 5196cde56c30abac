package e2e

import (
	"slices"
	"strings"
	"testing"

	"headgate/admission"
	"headgate/e2e/client"
	"headgate/journal"
)

// The lengths of answers below are in tokens, and tokens are the clock: all four
// slots of the engine advance together, a token a step. A request that starts
// later and is not shorter ends later, on any machine.

// class returns a class of the pool by its name.
func class(s *admission.Snapshot, name string) *admission.ClassSnapshot {
	return &s.Classes[slices.IndexFunc(s.Classes, func(c admission.ClassSnapshot) bool { return c.Name == name })]
}

// story is a journal, read from its beginning to its end.
type story struct {
	t    *testing.T
	all  []journal.Event
	next int
}

// then finds the next event that is as wanted.
func (s *story) then(want string, ok func(*journal.Event) bool) *journal.Event {
	s.t.Helper()
	for i := s.next; i < len(s.all); i++ {
		if ok(&s.all[i]) {
			s.next = i + 1
			return &s.all[i]
		}
	}
	var rest strings.Builder
	for _, e := range s.all[s.next:] {
		if e.Kind != journal.Progress {
			rest.WriteString("\n" + string(e.Kind) + " " + e.Class + " " + e.Request + " " + e.Cause)
		}
	}
	s.t.Fatalf("then %s: the journal goes on%s", want, rest.String())
	return nil
}

func kind(k journal.Kind, class string) func(*journal.Event) bool {
	return func(e *journal.Event) bool { return e.Kind == k && e.Class == class }
}

func loan(e *journal.Event) bool { return e.Kind == journal.Admitted && e.Loan }

func testLending(t *testing.T, b backend) {
	k := newKeys(t)
	g := serveBackend(t, b, k, ", idle_after: 300ms", "")
	call := func(key string, tokens int) client.Call {
		return client.Call{BaseURL: g.URL + "/v1", APIKey: key, Route: client.Chat, TimeoutMS: 100_000,
			Body: object{"model": b.model, "messages": user("hello world"), "max_tokens": tokens, "temperature": 0, "stream": true}}
	}
	const long, short = 600, 20

	// Batch offers five and gets three slots: its own and two that it borrows. The
	// unlent one stays free though batch waits.
	batch := client.Start(t, sdk, call(k.jobs, long), call(k.jobs, long), call(k.jobs, long), call(k.jobs, long), call(k.jobs, long))
	s := g.AwaitPool("batch has three slots and waits for more", func(s *admission.Snapshot) bool {
		return class(s, "batch").Used.Slots == 3 && class(s, "batch").Queue == 2
	})
	if c := class(s, "batch"); c.Loans != 2 || !strings.Contains(c.Head.Waiting, "slots") {
		t.Errorf("batch has %d loans, and its next waits for %s, want 2 and slots", c.Loans, c.Head.Waiting)
	}
	untilLoad(t, b.url, 3, 0)

	// An interactive request is let in at once, into the unlent slot.
	first := client.Start(t, sdk, call(k.app, long))
	<-first.First(0)
	untilLoad(t, b.url, 4, 0)

	// The next one does not fit: it recalls what was lent.
	second := make(chan error, 1)
	go func() {
		second <- streamAs(t.Context(), g.URL+chatPath, k.app,
			object{"model": b.model, "messages": user("hello"), "max_tokens": short, "stream": true})
	}()
	s = g.AwaitPool("a recall is open", func(s *admission.Snapshot) bool { return class(s, "interactive").Recall != nil })
	if c := class(s, "interactive"); c.Lending || c.Queue != 1 || s.Used.Slots != 4 {
		t.Errorf("while the recall is open the state is\n%s\nwant four slots used, no lending, one interactive request waiting", s)
	}

	if err := <-second; err != nil {
		t.Errorf("the second interactive request: %v", err)
	}
	if r := first.Result(0); r.Error != nil || r.Headers["headgate-decision"] != "admitted" || r.Headers["headgate-loan"] != "false" {
		t.Errorf("the first interactive request: error %+v, headers %v, want it admitted at once", r.Error, r.Headers)
	}
	for i := range 5 {
		r := batch.Result(i)
		if r.Error != nil || r.FinishReason != "length" || r.Chunks != long {
			t.Errorf("batch %d: error %+v, finish reason %q, %d tokens, want its whole answer", i, r.Error, r.FinishReason, r.Chunks)
		}
	}
	g.AwaitPool("nothing is held", idle)
	g.Terminate()
	g.Wait()

	tell := &story{t: t, all: g.Events()}
	tell.then("batch is admitted", kind(journal.Admitted, "batch"))
	tell.then("it borrows", loan)
	tell.then("it borrows again", loan)
	one := tell.then("the first interactive request comes", kind(journal.Arrived, "interactive")).Request
	tell.then("it is admitted", func(e *journal.Event) bool { return e.Kind == journal.Admitted && e.Request == one })
	two := tell.then("the second comes", kind(journal.Arrived, "interactive")).Request
	closed := tell.then("lending closes", kind(journal.LendingClosed, "interactive"))
	opened := tell.then("a recall opens for it", func(e *journal.Event) bool { return e.Kind == journal.RecallOpened && e.For == two })
	tell.then("it is granted", func(e *journal.Event) bool { return e.Kind == journal.RecallGranted && e.Recall == opened.Recall })
	served := tell.then("it is served", func(e *journal.Event) bool { return e.Kind == journal.RecallServed && e.For == two })
	settled := tell.then("it settles", func(e *journal.Event) bool { return e.Kind == journal.RecallSettled && e.Recall == opened.Recall })
	reopened := tell.then("lending opens again", kind(journal.LendingOpened, "interactive"))
	waited := 5 // of batch, when lending opened
	for i := range tell.all {
		if e := &tell.all[i]; e.Kind == journal.Admitted && e.Class == "batch" && e.Seq < reopened.Seq {
			waited--
		}
	}
	if waited > 0 { // with an engine that is quick or a machine that is not all were through
		tell.then("batch borrows again", loan)
	}

	for i := range tell.all {
		switch e := &tell.all[i]; {
		case loan(e) && e.Seq > closed.Seq && e.Seq < reopened.Seq:
			t.Errorf("a loan began while lending was closed: %+v", e)
		case e.Kind == journal.Queued && e.Request == one:
			t.Error("the first interactive request waited")
		case e.Kind == journal.Scheduled && e.ScheduledUpperNS != 0:
			t.Errorf("the engine tells when it began to run a request, the journal does not: %+v", e)
		}
	}
	if !slices.ContainsFunc(tell.all, func(e journal.Event) bool { return e.Kind == journal.Queued && e.Request == two }) {
		t.Error("the second interactive request did not wait")
	}
	// What served the recall is the end of a batch request, by itself, and the
	// next such end settled it: batch was back at its floor.
	ends := slices.DeleteFunc(slices.Clone(tell.all), func(e journal.Event) bool { return e.Kind != journal.Ended })
	for i, stage := range []*journal.Event{served, settled} {
		if e := ends[i]; e.Class != "batch" || e.Cause != "finished" || e.Seq > stage.Seq || ends[i+1].Seq < stage.Seq {
			t.Errorf("%s comes at %d, the ends around it are %+v and %+v, want a finished batch request's just before", stage.Kind, stage.Seq, e, ends[i+1])
		}
	}
}

// byDeadline and atOnce are how batch gives back what it borrowed in testReclaim.
const (
	byDeadline = ", reclaim: deadline, deadline: 300ms"
	atOnce     = ", reclaim: reclaim, guarantee: window, window: 60s"
)

func testReclaim(t *testing.T, b backend, batchSettings string) {
	k := newKeys(t)
	g := serveBackend(t, b, k, ", idle_after: 100ms", batchSettings)
	const tokens = 900 // of which many are left at the deadline, on a fast machine too
	body := func(i int) object {
		return object{"model": b.model, "messages": user([]string{"the river", "a mountain", "some words"}[i]), "max_tokens": tokens, "temperature": 0}
	}
	var calls []client.Call
	for i := range 3 {
		calls = append(calls, client.Call{BaseURL: g.URL + "/v1", APIKey: k.jobs, Route: client.Chat, TimeoutMS: 100_000, Body: body(i)})
	}
	batch := client.Start(t, sdk, calls...)
	g.AwaitPool("batch has three slots", func(s *admission.Snapshot) bool { return class(s, "batch").Used.Slots == 3 })
	untilLoad(t, b.url, 3, 0)

	// Two interactive requests: one takes the unlent slot, the other wants a loan's.
	var streams []*stream
	for range 2 {
		s, err := openStreamAs(t.Context(), g.URL+chatPath, k.app, object{"model": b.model, "messages": user("hello"), "max_tokens": tokens, "stream": true})
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		streams = append(streams, s)
	}
	untilLoad(t, b.url, 4, 0) // two of them are interactive: the loan's sequence has left the engine
	// Its confirmation may come after that.
	g.AwaitPool("two slots each, one batch request waiting, no ghost", func(s *admission.Snapshot) bool {
		i, b := class(s, "interactive"), class(s, "batch")
		return i.Used.Slots == 2 && b.Used.Slots == 2 && b.Queue == 1 && s.Ghosts == 0
	})
	for _, s := range streams {
		s.close()
	}
	for i := range 3 {
		r := batch.Result(i)
		want := mustGenerate(t, b.url+chatPath, body(i))
		if r.Error != nil || b.exact && r.Text != want.text || len(strings.Fields(r.Text)) != len(strings.Fields(want.text)) || r.FinishReason != want.finish || r.Usage == nil || r.Usage.Completion != tokens || r.Usage.Prompt != want.usage.Prompt {
			t.Errorf("batch %d: error %+v, usage %+v, finish reason %q, text\n%q\nwant the engine's\n%q", i, r.Error, r.Usage, r.FinishReason, r.Text, want.text)
		}
	}
	g.AwaitPool("nothing is held", idle)
	g.Terminate()
	g.Wait()

	all := g.Events()
	tell := &story{t: t, all: all}
	opened := tell.then("a recall opens", kind(journal.RecallOpened, "interactive"))
	tell.then("its request is admitted", func(e *journal.Event) bool { return e.Kind == journal.Admitted && e.Request == opened.For })
	again := (&story{t: t, all: all}).then("a loan is ended", func(e *journal.Event) bool { return e.Kind == journal.Ended && e.Cause == "reclaimed" && e.Loan })
	tell = &story{t: t, all: all}
	tell.then("the engine confirms it", func(e *journal.Event) bool {
		return e.Kind == journal.Released && e.Hold == again.Hold && e.Cause != ""
	})
	tell.then("the request runs again", func(e *journal.Event) bool { return e.Kind == journal.Admitted && e.Request == again.Request })
	tell.then("and finishes", func(e *journal.Event) bool {
		return e.Kind == journal.Finished && e.Request == again.Request && e.Cause == "finished" && e.Status == 200
	})
	arrived := 0
	for i := range all {
		if all[i].Kind == journal.Arrived && all[i].Request == again.Request {
			arrived++
		}
	}
	if arrived != 1 {
		t.Errorf("the request arrived %d times, want once: the SDK must not have seen the restart", arrived)
	}
}
