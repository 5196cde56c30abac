package trace

import "time"

// Workload says what was asked for when a trace was drawn. Its fields, their
// order and their names are part of the canonical form. Times are in
// milliseconds from the trace's start, rates in requests a second.
type Workload struct {
	DurationMs            int     `json:"durationMs"`
	Seed                  uint32  `json:"seed"`
	InteractiveRps        float64 `json:"interactiveRps"`
	InteractiveInputChars int     `json:"interactiveInputChars"`
	InteractiveMaxTokens  int     `json:"interactiveMaxTokens"`
	BatchStartMs          int     `json:"batchStartMs"`
	BatchDurationMs       int     `json:"batchDurationMs"`
	BatchRps              float64 `json:"batchRps"`
	BatchInputChars       int     `json:"batchInputChars"`
	BatchMaxTokens        int     `json:"batchMaxTokens"`
	MaxAttempts           int     `json:"maxAttempts"`
	BackoffBaseMs         int     `json:"backoffBaseMs"`
	InteractiveStartMs    int     `json:"interactiveStartMs"`
	InteractiveDurationMs int     `json:"interactiveDurationMs"`
	ResumeStartMs         int     `json:"interactiveResumeStartMs"`
	ResumeDurationMs      int     `json:"interactiveResumeDurationMs"`
	ResumeRps             float64 `json:"interactiveResumeRps"`
}

// Window is a span of a trace, from Start to before End.
type Window struct{ Start, End time.Duration }

// Contains tells whether an arrival falls into the window.
func (w Window) Contains(arrival time.Duration) bool { return w.Start <= arrival && arrival < w.End }

func window(startMs, durationMs int) Window {
	return Window{ms(startMs), ms(startMs + durationMs)}
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// Duration is the trace's length, behind which nothing arrives.
func (w *Workload) Duration() time.Duration { return ms(w.DurationMs) }

// Borrow is the window in which interactive traffic pauses and batch has the
// engine to itself. It is empty where interactive traffic never pauses.
func (w *Workload) Borrow() Window {
	if w.ResumeDurationMs == 0 {
		return Window{}
	}
	return Window{window(w.InteractiveStartMs, w.InteractiveDurationMs).End, ms(w.ResumeStartMs)}
}

// Return is the window in which returning interactive traffic is scored. Where
// it never pauses, and in a recorded log, which has no phases, that is the whole
// trace.
func (w *Workload) Return() Window {
	if w.ResumeDurationMs == 0 {
		return window(0, w.DurationMs)
	}
	return window(w.ResumeStartMs, w.ResumeDurationMs)
}

// size is what the workload says of a class's requests.
func (w *Workload) size(class string) (inputChars, maxTokens int) {
	switch class {
	case Interactive:
		return w.InteractiveInputChars, w.InteractiveMaxTokens
	case Batch:
		return w.BatchInputChars, w.BatchMaxTokens
	}
	return 0, 0
}
