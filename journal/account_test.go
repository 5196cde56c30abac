package journal

import "testing"

// An account is what the events of one request come to; what comes when it is over, and
// pieces of its prompt, are no part of it.
func TestAccount(t *testing.T) {
	var a Account
	for _, e := range []Event{
		{Kind: Arrived, Pool: "main", Class: "batch", Model: "m", PromptTokens: 90},
		{Kind: Queued},
		{Kind: Warming, Engine: "e9", Loan: true},
		{Kind: Ended, Cause: "finished", PieceTokens: 9},
		{Kind: Admitted, Engine: "e0", Loan: true, Grant: "1/2", Revision: 3, QueueNS: 7},
		{Kind: Dispatched, Engine: "e0"},
		{Kind: Ended, Cause: "reclaimed", For: "req_1"},
		{Kind: Queued},
		{Kind: Admitted, Engine: "e1", Grant: "1/3", Revision: 4, QueueNS: 8},
		{Kind: Ended, Cause: "finished"},
		{Kind: Finished, Engine: "e1", Cause: "finished", PromptTokens: 100, CachedTokens: 64, OutputTokens: 20},
		{Kind: Released, Engine: "e0", Cause: "x"},
		{Kind: Scheduled, Engine: "e0"},
	} {
		a.Note(&e)
	}
	want := Account{
		Pool: "main", Engine: "e1", Class: "batch", Model: "m", Admitted: true, Queued: true, Loans: 1, Reclaims: 1, Grant: "1/3", Revision: 4,
		Cause: "finished", QueueNS: 8, PromptTokens: 100, CachedTokens: 64, OutputTokens: 20,
	}
	if a != want {
		t.Errorf("got  %+v\nwant %+v", a, want)
	}
	for _, e := range []Event{{Kind: Arrived, Pool: "main", Class: "chat"}, {Kind: Rejected, Cause: "queue_full", Revision: 5, QueueNS: 2}} {
		a.Note(&e)
	}
	if want := (Account{Pool: "main", Class: "chat", Cause: "queue_full", Revision: 5, QueueNS: 2}); a != want {
		t.Errorf("judged anew: got %+v, want %+v", a, want)
	}
	a = Account{}
	a.Note(&Event{Kind: Forwarded, Pool: "main", Class: "chat", Peer: "b"})
	if want := (Account{Pool: "main", Class: "chat", Peer: "b"}); a != want {
		t.Errorf("sent on: got %+v, want %+v", a, want)
	}
}
