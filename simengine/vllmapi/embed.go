package vllmapi

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"

	"headgate/simengine"
)

// Dimensions of an embedding.
const (
	defaultDimensions = 64
	maxDimensions     = 4096
)

// embedding is the body of a request for embeddings.
type embedding struct {
	Model      string          `json:"model"`
	Input      json.RawMessage `json:"input"`
	Dimensions *int            `json:"dimensions"`
	Encoding   *string         `json:"encoding_format"`
	Priority   int             `json:"priority"`
}

// embeddings answers with a vector for each input. Its sequences are scheduled like
// any other and end with their prefill, which here makes a token that nobody gets.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	g, dimensions, packed, e := s.readEmbedding(w, r)
	if e != nil {
		e.write(w)
		return
	}
	an := s.newAnswer(g, r.Header.Get("X-Request-Id"))
	if e := s.submit(an.job); e != nil {
		e.write(w)
		return
	}
	an.serve(r, &vectorSink{answer: an, w: w, dimensions: dimensions, packed: packed})
}

func (s *Server) readEmbedding(w http.ResponseWriter, r *http.Request) (g *generation, dimensions int, packed bool, e *apiError) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, 0, false, badRequest("", "body: %v", err)
	}
	var b embedding
	if e := unmarshal(data, &b); e != nil {
		return nil, 0, false, e
	}
	if b.Model != "" && b.Model != s.cfg.ModelName {
		return nil, 0, false, unknownModel(b.Model)
	}
	dimensions = defaultDimensions
	if b.Dimensions != nil {
		dimensions = *b.Dimensions
	}
	if dimensions < 1 || dimensions > maxDimensions {
		return nil, 0, false, badRequest("dimensions", "dimensions: %d: allowed are 1 to %d", dimensions, maxDimensions)
	}
	switch {
	case b.Encoding == nil || *b.Encoding == "float":
	case *b.Encoding == "base64":
		packed = true
	default:
		return nil, 0, false, badRequest("encoding_format", "encoding_format: %q: allowed are float and base64", *b.Encoding)
	}
	g = &generation{api: embeddingAPI, n: 1, max: 1, priority: b.Priority}
	if g.prompts, e = parsePrompt("input", b.Input); e != nil {
		return nil, 0, false, e
	}
	if len(g.prompts) > maxSequences {
		return nil, 0, false, badRequest("input", "input: %d inputs: allowed are %d in one request", len(g.prompts), maxSequences)
	}
	return g, dimensions, packed, s.fit(g)
}

// vectorSink answers with vectors in one piece.
type vectorSink struct {
	*answer
	w          http.ResponseWriter
	dimensions int
	packed     bool
}

func (s *vectorSink) piece(*choice, string, []simengine.Token) {}
func (s *vectorSink) flush()                                   {}
func (s *vectorSink) fail(e *apiError)                         { e.write(s.w) }

func (s *vectorSink) end() {
	b := append([]byte(nil), `{"id":`...)
	b = appendString(b, s.id)
	b = append(b, `,"object":"list","created":`...)
	b = strconv.AppendInt(b, s.created, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, s.server.cfg.ModelName)
	b = append(b, `,"data":[`...)
	tokens := 0
	for i, c := range s.choices {
		if i > 0 {
			b = append(b, ',')
		}
		tokens += len(c.prompt)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"object":"embedding","embedding":`...)
		b = append(appendVector(b, vector(c.prompt, s.dimensions), s.packed), '}')
	}
	b = append(b, `],"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(tokens), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(tokens), 10)
	b = append(b, `,"completion_tokens":0,"prompt_tokens_details":null}}`...)
	s.w.Header().Set("Content-Type", "application/json")
	s.w.Write(b)
}

// vector is of length 1 and depends on all tokens and their order, by FNV-1a. It
// means nothing: texts that are alike have no vectors that are.
func vector(tokens []simengine.Token, dimensions int) []float32 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, t := range tokens {
		h = (h ^ uint64(t)) * prime
	}
	v := make([]float32, dimensions)
	var sum float64
	for i := range v {
		h = (h ^ uint64(i)) * prime
		x := float64(int32(h>>32)) / (1 << 31)
		v[i] = float32(x)
		sum += x * x
	}
	length := float32(math.Sqrt(sum))
	for i := range v {
		v[i] /= length
	}
	return v
}

func appendVector(dst []byte, v []float32, packed bool) []byte {
	if packed {
		raw := make([]byte, 0, 4*len(v))
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		dst = base64.StdEncoding.AppendEncode(append(dst, '"'), raw)
		return append(dst, '"')
	}
	dst = append(dst, '[')
	for i, x := range v {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(x), 'g', -1, 32)
	}
	return append(dst, ']')
}
