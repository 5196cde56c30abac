package vllm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/tidwall/gjson"

	"headgate/wire"
)

// maxTokenized bounds the answer to a tokenization, in bytes: about a megabyte for
// 128k tokens.
const maxTokenized = 16 << 20

// shapes are the fields of a request that decide what ids its prompt has, and that
// /tokenize reads too. Its names and defaults are those of the route that the
// request goes to.
var shapes = map[wire.API]map[string]bool{
	wire.Chat: {"model": true, "messages": true, "tools": true, "add_generation_prompt": true, "continue_final_message": true,
		"add_special_tokens": true, "chat_template": true, "chat_template_kwargs": true},
	wire.Completions: {"model": true, "prompt": true, "add_special_tokens": true},
}

var errPrompt = errors.New("the prompt is not one text or one list of token ids")

// Tokens implements engine.Tokenizer. A prompt that is given as ids needs no
// question.
func (a *Adapter) Tokens(ctx context.Context, api wire.API, body []byte) ([]int32, error) {
	question := []byte{'{'}
	var prompt gjson.Result
	gjson.ParseBytes(body).ForEach(func(key, value gjson.Result) bool {
		if !shapes[api][key.Str] || value.Type == gjson.Null {
			return true
		}
		if key.Str == "prompt" {
			if value = alone(value); value.IsArray() {
				prompt = value
				return false
			}
		}
		if len(question) > 1 {
			question = append(question, ',')
		}
		question = append(strconv.AppendQuote(question, key.Str), ':')
		question = append(question, value.Raw...)
		return true
	})
	if prompt.IsArray() {
		return readIDs(prompt)
	}
	reply, err := a.Post(ctx, "/tokenize", append(question, '}'), maxTokenized)
	if err != nil {
		return nil, err
	}
	if reply.Status != http.StatusOK {
		return nil, fmt.Errorf("post /tokenize: status %d", reply.Status)
	}
	ids, err := readIDs(gjson.GetBytes(reply.Body, "tokens"))
	if err != nil {
		return nil, fmt.Errorf("post /tokenize: %w", err)
	}
	return ids, nil
}

// alone takes the only prompt out of a list of prompts.
func alone(v gjson.Result) gjson.Result {
	if !v.IsArray() {
		return v
	}
	var first gjson.Result
	n := 0
	v.ForEach(func(_, e gjson.Result) bool {
		if n == 0 {
			first = e
		}
		n++
		return n < 2
	})
	if n == 1 && (first.Type == gjson.String || first.IsArray()) {
		return first
	}
	return v
}

func readIDs(list gjson.Result) ([]int32, error) {
	if !list.IsArray() {
		return nil, errors.New("no list of token ids")
	}
	var ids []int32
	fine := true
	list.ForEach(func(_, id gjson.Result) bool {
		n := id.Num
		fine = id.Type == gjson.Number && n >= 0 && n <= math.MaxInt32 && n == math.Trunc(n)
		ids = append(ids, int32(n))
		return fine
	})
	switch {
	case !fine:
		return nil, fmt.Errorf("%w: token ids are whole numbers from 0 to %d", errPrompt, math.MaxInt32)
	case len(ids) == 0:
		return nil, errPrompt
	}
	return ids, nil
}
