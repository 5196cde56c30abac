package vllmapi

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"testing"
)

// Vectors depend on the input alone, whatever form it comes in and however it is
// answered, and cost the prompt's tokens.
func TestEmbeddings(t *testing.T) {
	s, h := serve(t, fast())
	type document struct {
		Model string
		Data  []struct {
			Index     int
			Object    string
			Embedding json.RawMessage
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	ask := func(body string) (d document, vectors [][]float32) {
		t.Helper()
		status, text := post(t, h.URL+"/v1/embeddings", body)
		if err := json.Unmarshal([]byte(text), &d); err != nil || status != 200 || d.Model != s.ModelName() {
			t.Fatalf("%d %s: %v", status, text, err)
		}
		for i, e := range d.Data {
			var v []float32
			var packed []byte
			if e.Embedding[0] == '"' {
				if json.Unmarshal(e.Embedding, &packed) != nil {
					t.Fatalf("%s: no base64", e.Embedding)
				}
				for ; len(packed) >= 4; packed = packed[4:] {
					v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(packed)))
				}
			} else if err := json.Unmarshal(e.Embedding, &v); err != nil {
				t.Fatal(err)
			}
			var sum float64
			for _, x := range v {
				sum += float64(x) * float64(x)
			}
			if math.Abs(sum-1) > 1e-5 || e.Index != i || e.Object != "embedding" {
				t.Errorf("vector %d of %s: length %v, %s", i, body, sum, e.Object)
			}
			vectors = append(vectors, v)
		}
		return d, vectors
	}
	one, want := ask(`{"input":"the river"}`)
	_, packed := ask(`{"input":["the river","the sea"],"encoding_format":"base64"}`)
	if len(want[0]) != defaultDimensions || !reflect.DeepEqual(want[0], packed[0]) || reflect.DeepEqual(packed[0], packed[1]) {
		t.Errorf("%v, packed %v", want, packed)
	}
	_, ids := ask(`{"input":[[5,6,7],[5,7,6]],"dimensions":8}`)
	if len(ids[0]) != 8 || reflect.DeepEqual(ids[0], ids[1]) {
		t.Errorf("%v", ids)
	}
	if d, _ := ask(`{"input":[5,6,7]}`); d.Usage.Prompt != 3 || d.Usage.Total != 3 || one.Usage.Prompt == 0 {
		t.Errorf("usage %+v, %+v", d.Usage, one.Usage)
	}
	for _, body := range []string{`{}`, `{"input":[]}`, `{"input":""}`, `{"input":"x","dimensions":0}`, `{"input":"x","encoding_format":"int8"}`, `{"input":[-1]}`} {
		if status, text := post(t, h.URL+"/v1/embeddings", body); status != 400 {
			t.Errorf("%s: %d %s", body, status, text)
		}
	}
	if status, text := post(t, h.URL+"/v1/embeddings", `{"model":"other","input":"x"}`); status != 404 {
		t.Errorf("%d %s", status, text)
	}
}
