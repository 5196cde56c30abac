package spans

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protowire"
)

// Outcome is what became of a span.
type Outcome string

// Outcomes. Taken to Impossible are the answers of who is handed a span.
const (
	Taken      Outcome = "taken"      // it made exact what had been an interval
	Unneeded   Outcome = "unneeded"   // it was known already, or the request has several sequences
	Unknown    Outcome = "unknown"    // no request of that id was sent, or long ago
	Impossible Outcome = "impossible" // it contradicts what was seen from here
	Foreign    Outcome = "foreign"    // of something else than a request
	LeftOut    Outcome = "left_out"   // beyond MaxSpans
)

var outcomes = []Outcome{Taken, Unneeded, Unknown, Impossible, Foreign, LeftOut}

// Bounds of an export. An engine sends at most 512 spans at a time, a collector
// that passes them on 8192, of well under a kilobyte each.
const (
	MaxBody  = 8 << 20 // bytes, unpacked
	MaxSpans = 8192
	// maxExports are read at a time; memory is bounded by it and MaxBody.
	maxExports = 4
	// bodyTime is how long one may take to come, so that it does not keep its place.
	bodyTime = 10 * time.Second
)

// Receiver answers exports. Create it with New.
type Receiver struct {
	take   func(Span) Outcome
	places chan struct{}
	spans  *prometheus.CounterVec
}

// New returns a receiver that hands every request's span to take.
func New(take func(Span) Outcome, r prometheus.Registerer) *Receiver {
	rec := &Receiver{
		take: take, places: make(chan struct{}, maxExports),
		spans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "headgate_spans_total",
			Help: "Spans that engines have exported to /v1/traces, by what became of them: taken (made exact when the engine began a request), unneeded (known already), unknown (no recent request of that id), impossible (contradicts what was seen from here), foreign (of something else than a request), left_out (beyond what is read of one export).",
		}, []string{"outcome"}),
	}
	for _, o := range outcomes {
		rec.spans.WithLabelValues(string(o))
	}
	r.MustRegister(rec.spans)
	return rec
}

// Content types of OTLP over HTTP; the answer has that of the request.
const (
	typeProtobuf = "application/x-protobuf"
	typeJSON     = "application/json"
)

// ServeHTTP answers an export as OTLP says: 200 with what was not read of it, or
// an error with a Status. 503 is one that the exporter may send again.
func (rec *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind != typeProtobuf && kind != typeJSON {
		http.Error(w, fmt.Sprintf("Content-Type is %.40q, must be %s or %s", kind, typeProtobuf, typeJSON), http.StatusUnsupportedMediaType)
		return
	}
	select {
	case rec.places <- struct{}{}:
		defer func() { <-rec.places }()
	default:
		w.Header().Set("Retry-After", "1")
		refuse(w, kind, http.StatusServiceUnavailable, "too many exports at once")
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // where the connection has one
	body, status, err := unpack(w, r)
	if err != nil {
		refuse(w, kind, status, err.Error())
		return
	}
	b := batch{most: MaxSpans}
	if kind == typeJSON {
		err = b.json(body)
	} else {
		err = b.protobuf(body)
	}
	if err != nil {
		refuse(w, kind, http.StatusBadRequest, "the export can't be read: "+err.Error())
		return
	}
	for _, s := range b.spans {
		rec.spans.WithLabelValues(string(rec.take(s))).Inc()
	}
	rec.spans.WithLabelValues(string(Foreign)).Add(float64(b.foreign))
	rec.spans.WithLabelValues(string(LeftOut)).Add(float64(b.left))
	accept(w, kind, b.left)
}

// unpack reads the whole body; an error comes with the status to answer.
func unpack(w http.ResponseWriter, r *http.Request) (body []byte, status int, err error) {
	// What unpacks to no more than MaxBody is hardly ever longer when packed.
	var in io.Reader = http.MaxBytesReader(w, r.Body, MaxBody)
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, http.StatusBadRequest, fmt.Errorf("the body is not gzip: %w", err)
		}
		in = z
	default:
		return nil, http.StatusUnsupportedMediaType, fmt.Errorf("Content-Encoding is %.40q, must be gzip or absent", encoding)
	}
	var b bytes.Buffer
	n, err := b.ReadFrom(io.LimitReader(in, MaxBody+1))
	var long *http.MaxBytesError
	switch {
	case n > MaxBody || errors.As(err, &long):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the export is larger than %d bytes", MaxBody)
	case err != nil:
		return nil, http.StatusBadRequest, fmt.Errorf("the body can't be read: %w", err)
	}
	return b.Bytes(), 0, nil
}

// accept answers with an ExportTraceServiceResponse: empty if everything was
// read, else with how many spans were not.
func accept(w http.ResponseWriter, kind string, left int) {
	var why string
	if left > 0 {
		why = fmt.Sprintf("only the first %d spans of an export are read", MaxSpans)
	}
	var body []byte
	switch {
	case kind == typeJSON && left == 0:
		body = []byte("{}")
	case kind == typeJSON:
		body = document(map[string]any{"partialSuccess": map[string]any{"rejectedSpans": strconv.Itoa(left), "errorMessage": why}})
	case left > 0:
		partial := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(left))
		partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), why)
		body = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial)
	}
	w.Header().Set("Content-Type", kind)
	w.Write(body)
}

// codes of google.rpc.Code by status.
var codes = map[int]int{
	http.StatusBadRequest: 3, http.StatusRequestEntityTooLarge: 8, http.StatusServiceUnavailable: 14, http.StatusUnsupportedMediaType: 12,
}

// refuse answers with a google.rpc.Status.
func refuse(w http.ResponseWriter, kind string, status int, message string) {
	var body []byte
	if kind == typeJSON {
		body = document(map[string]any{"code": codes[status], "message": message})
	} else {
		body = protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(codes[status]))
		body = protowire.AppendString(protowire.AppendTag(body, 2, protowire.BytesType), message)
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	w.Write(body)
}

func document(v map[string]any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("spans: " + err.Error()) // strings and numbers only
	}
	return b
}
