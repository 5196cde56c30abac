package upstream

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
)

// MaxModels bounds a model list, in bytes.
const MaxModels = 8 << 20

// Models fetches the engine's model list.
func (c *Client) Models(ctx context.Context) ([]engine.Model, error) {
	body, err := c.GetOK(ctx, "/v1/models", MaxModels)
	if err != nil {
		return nil, err
	}
	return parseModels(body)
}

// parseModels reads OpenAI's list, with the context length where an engine adds
// it: vLLM and SGLang as max_model_len, llama-server as meta.n_ctx. Adapters
// (LoRA) are entries of the same list, often without one, with the model that they
// go on top of as parent. A llama-server that changes models says of each in status
// whether it is loaded.
func parseModels(body []byte) ([]engine.Model, error) {
	data := gjson.GetBytes(body, "data")
	if !gjson.ValidBytes(body) || !data.IsArray() {
		return nil, errors.New("model list: want an object with an array data")
	}
	models := []engine.Model{}
	for _, m := range data.Array() {
		id := m.Get("id").String()
		if id == "" {
			continue
		}
		n := Number(m.Get("max_model_len"))
		if n <= 0 {
			n = max(0, Number(m.Get("meta.n_ctx")))
		}
		models = append(models, engine.Model{ID: id, MaxContext: n, Parent: m.Get("parent").String(), Unloaded: unloaded(m.Get("status.value"))})
	}
	return models, nil
}

// unloaded reads a model's status; an engine that says none has it loaded.
func unloaded(status gjson.Result) bool { return status.Exists() && status.String() != "loaded" }

// LeastContext is the smallest context length that is said; 0: none is. It is
// what every model of the engine can take.
func LeastContext(models []engine.Model) int {
	least := 0
	for _, m := range models {
		if m.MaxContext > 0 && (least == 0 || m.MaxContext < least) {
			least = m.MaxContext
		}
	}
	return least
}

// Number is a number of an engine's document as a count; -1: it is none.
func Number(v gjson.Result) int {
	if v.Type != gjson.Number || !(v.Num >= 0) || v.Num > math.MaxInt32 {
		return -1
	}
	return int(v.Num)
}

// Milliseconds is a number of milliseconds as a duration; -1: it is none.
func Milliseconds(v gjson.Result) time.Duration {
	if v.Type != gjson.Number || !(v.Num >= 0) || v.Num > float64(math.MaxInt64/time.Millisecond) {
		return -1
	}
	return time.Duration(v.Num * float64(time.Millisecond))
}
