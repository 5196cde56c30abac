package llamacpp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/wire"
)

// token is a token id and the bytes that it stands for.
type token struct {
	id    int32
	piece string
}

var _ engine.Tokenizer = (*Adapter)(nil)

// errUntold is the error of an engine that is there and tells no token ids.
var errUntold = errors.New("the engine tells no token ids")

// Tokens implements engine.Tokenizer. It makes the ids the way the OpenAI routes
// do: the chat template is applied by the engine, and special tokens are read in
// what comes of it as in a client's own prompt. Each question is bounded by the
// scrape timeout.
func (a *Adapter) Tokens(ctx context.Context, api wire.API, body []byte) ([]int32, error) {
	text := alone(gjson.GetBytes(body, "prompt"))
	switch {
	case api == wire.Chat:
		answer, err := a.ask(ctx, "/apply-template", body)
		if err != nil {
			return nil, err
		}
		if text = gjson.GetBytes(answer, "prompt"); !gjson.ValidBytes(answer) || text.Type != gjson.String {
			return nil, fmt.Errorf("%w: post /apply-template: want an object with a string prompt", errUntold)
		}
	case api != wire.Completions:
		return nil, fmt.Errorf("tokens: api %d: allowed are chat and completions", api)
	case text.IsArray():
		ids, err := readIDs(text)
		if err != nil {
			return nil, fmt.Errorf("prompt: %w", err)
		}
		return ids, nil
	case text.Type != gjson.String:
		return nil, fmt.Errorf("prompt: %s: allowed are a string and an array of token ids", text.Type)
	}
	tokens, err := a.tokenize(ctx, text.String(), true)
	if err != nil {
		return nil, err
	}
	ids := make([]int32, len(tokens))
	for i, t := range tokens {
		ids[i] = t.id
	}
	return ids, nil
}

// alone takes the only prompt out of a list of prompts.
func alone(v gjson.Result) gjson.Result {
	if !v.IsArray() {
		return v
	}
	first := v.Get("0")
	if (first.Type == gjson.String || first.IsArray()) && !v.Get("1").Exists() {
		return first
	}
	return v
}

// ask posts a question and returns the answer. A refusal is an errUntold.
func (a *Adapter) ask(ctx context.Context, path string, body []byte) ([]byte, error) {
	reply, err := a.Post(ctx, path, body, a.cfg.MaxAnswer)
	if err != nil {
		return nil, err
	}
	if reply.Status != http.StatusOK {
		return nil, fmt.Errorf("%w: post %s: status %d", errUntold, path, reply.Status)
	}
	return reply.Body, nil
}

// tokenize has the engine cut a text. A prompt begins with what the model wants a
// text to begin with, and special tokens are read in it.
func (a *Adapter) tokenize(ctx context.Context, text string, prompt bool) ([]token, error) {
	body, err := json.Marshal(struct {
		Content    string `json:"content"`
		AddSpecial bool   `json:"add_special"`
		Parse      bool   `json:"parse_special"`
		Pieces     bool   `json:"with_pieces"`
	}{text, prompt, prompt, true})
	if err != nil {
		return nil, err
	}
	answer, err := a.ask(ctx, "/tokenize", body)
	if err != nil {
		return nil, err
	}
	tokens, err := parseTokens(answer)
	if err != nil {
		return nil, fmt.Errorf("%w: post /tokenize: %w", errUntold, err)
	}
	return tokens, nil
}

// parseTokens reads an answer of /tokenize with pieces: strings, or arrays of
// bytes where they are no UTF-8.
func parseTokens(body []byte) ([]token, error) {
	list := gjson.GetBytes(body, "tokens")
	if !gjson.ValidBytes(body) || !list.IsArray() {
		return nil, errors.New("want an object with an array tokens")
	}
	tokens := []token{}
	for _, v := range list.Array() {
		id, err := readID(v.Get("id"))
		if err != nil {
			return nil, err
		}
		t := token{id: id}
		switch piece := v.Get("piece"); {
		case piece.Type == gjson.String:
			t.piece = piece.String()
		case piece.IsArray():
			var b []byte
			for _, c := range piece.Array() {
				n, err := readID(c)
				if err != nil || n > math.MaxUint8 {
					return nil, fmt.Errorf("a piece has %.40s: want bytes", c.Raw)
				}
				b = append(b, byte(n))
			}
			t.piece = string(b)
		default:
			return nil, errors.New("a token without its piece")
		}
		tokens = append(tokens, t)
	}
	return tokens, nil
}

func readIDs(list gjson.Result) ([]int32, error) {
	all := list.Array()
	ids := make([]int32, len(all))
	for i, v := range all {
		id, err := readID(v)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

func readID(v gjson.Result) (int32, error) {
	if v.Type != gjson.Number || !(v.Num >= 0) || v.Num > math.MaxInt32 || v.Num != math.Trunc(v.Num) {
		return 0, fmt.Errorf("%.40s is no token id", v.Raw)
	}
	return int32(v.Num), nil
}

// marks are what a chat template has whose model's output is more than the answer:
// the chat route then takes reasoning or channels out of it, which nothing here
// does. One mark too many only costs answers that start over.
var marks = []string{"think", "thought", "reason", "channel", "thk", "inner_prefix", "start_response", "start_action", ">>>"}

// plain tells whether the output that follows a template is the answer.
func plain(template string) bool {
	template = strings.ToLower(template)
	for _, m := range marks {
		if strings.Contains(template, m) {
			return false
		}
	}
	return true
}

// tells whether the engine has what an attempt with token ids takes. The youngest of
// it is /apply-template (January 2025), so that what is older need not be tried.
func (a *Adapter) tells(ctx context.Context) (bool, error) {
	_, err := a.Tokens(ctx, wire.Chat, []byte(`{"messages":[{"role":"user","content":"a"}]}`))
	if errors.Is(err, errUntold) {
		return false, nil
	}
	return err == nil, err
}

// prefills tells whether the engine's prompt of a chat ends with what its last message
// has, if that is the assistant's. It depends on its version and on the template.
func (a *Adapter) prefills(ctx context.Context) (bool, error) {
	answer, err := a.ask(ctx, "/apply-template", []byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"begun"}]}`))
	if errors.Is(err, errUntold) {
		return false, nil
	}
	return err == nil && strings.HasSuffix(gjson.GetBytes(answer, "prompt").String(), "begun"), err
}
