package batch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
)

// Codes of an item's line for which no request was answered.
const (
	codeExpired   = "batch_expired"
	codeCancelled = "batch_cancelled"
	codeAttempts  = "attempts_exhausted"
)

// itemError is why there is no answer, or none that will do.
type itemError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type itemResponse struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

// digest tells items apart, the same way in every process.
func digest(batch string, line int64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", batch, line)
	return h.Sum64()
}

// spread is an item's own number, at least 0 and below 1.
func spread(batch string, line int64) float64 {
	return float64(digest(batch, line)) / (math.MaxUint64 + 1.)
}

// requestID is what an item's request is called.
func requestID(batch string, line int64) string {
	return fmt.Sprintf("batch_req_%016x%x", digest(batch, line), line)
}

// answerLine is an item's line in the output or the error file, without newline.
func answerLine(it Item, a *Answer, e *itemError) json.RawMessage {
	id := requestID(it.Batch, it.Line)
	line := struct {
		ID       string        `json:"id"`
		CustomID string        `json:"custom_id"`
		Response *itemResponse `json:"response"`
		Error    *itemError    `json:"error"`
	}{ID: id, CustomID: it.CustomID, Error: e}
	if a != nil {
		line.Response = &itemResponse{Status: a.Status, RequestID: a.RequestID, Body: oneLine(a.Body)}
		if a.RequestID == "" {
			line.Response.RequestID = id
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // what an engine wrote stays as it is
	if err := enc.Encode(line); err != nil {
		panic(err) // the body was checked; the rest can be nothing else than JSON
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// oneLine is a body without newlines; what is no JSON, such as a proxy's page, becomes a
// text.
func oneLine(body []byte) json.RawMessage {
	var b bytes.Buffer
	if len(body) == 0 {
		return json.RawMessage("null")
	}
	if json.Compact(&b, body) == nil {
		return b.Bytes()
	}
	text, err := json.Marshal(string(bytes.ToValidUTF8(body, []byte("\uFFFD"))))
	if err != nil {
		panic(err) // a string is never refused
	}
	return text
}
