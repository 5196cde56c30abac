package enginetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"headgate/wire"
)

// nativePath is llama-server's own route, whose events are not OpenAI's.
const nativePath = "/completion"

// llama answers at the routes that only llama-server has. Its tokenizer
// knows one token a byte, with the ids from firstByte on, begins a prompt with the
// token 1, and puts a space before every text.
func (e *Engine) llama(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path == nativePath {
		e.generate(w, r, wire.Completions)
		return true
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return true
	}
	switch r.URL.Path {
	case "/apply-template":
		var b strings.Builder
		for _, m := range gjson.GetBytes(body, "messages").Array() {
			b.WriteString(m.Get("role").String() + ": " + m.Get("content").String() + "\n")
		}
		_, _ = fmt.Fprintf(w, `{"prompt":%q}`, b.String())
	case "/tokenize":
		_, _ = io.WriteString(w, llamaTokens(gjson.GetBytes(body, "content").String(), gjson.GetBytes(body, "add_special").Bool()))
	default:
		return false
	}
	return true
}

const firstByte = 3

func llamaTokens(text string, begin bool) string {
	type token struct {
		ID    int `json:"id"`
		Piece any `json:"piece"`
	}
	var tokens []token
	if begin {
		tokens = append(tokens, token{1, ""})
	}
	for _, c := range []byte(" " + text) {
		t := token{int(c) + firstByte, string(rune(c))}
		if c >= utf8.RuneSelf {
			t.Piece = []int{int(c)}
		}
		tokens = append(tokens, t)
	}
	b, _ := json.Marshal(map[string]any{"tokens": tokens})
	return string(b)
}

// nativeEvent is an event of /completion with one token.
func (c *Call) nativeEvent(text string, id int) string {
	return fmt.Sprintf("data: {\"index\":0,\"content\":%q,\"tokens\":[%d],\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":%d,\"tokens_evaluated\":%d}\n\n",
		text, id, c.tokens, c.promptTokens())
}

func (c *Call) nativeEnd(reason string) string {
	stop := map[string]string{"stop": "eos", "length": "limit"}[reason]
	return fmt.Sprintf("data: {\"index\":0,\"content\":\"\",\"tokens\":[],\"id_slot\":0,\"stop\":true,\"tokens_predicted\":%d,\"tokens_evaluated\":%d,\"stop_type\":%q,"+
		"\"timings\":{\"cache_n\":2,\"prompt_n\":1,\"prompt_ms\":12.5}}\n\n", c.tokens, c.promptTokens(), stop)
}

func (c *Call) promptTokens() int { return len(gjson.GetBytes(c.Body, "prompt").Array()) }

// Character is sent by /completion once it is complete, with the last of its
// tokens, one a byte.
func (c *Call) Character(char string) {
	c.tokens += len(char)
	c.Start()
	c.Send(c.nativeEvent(char, int(char[len(char)-1])+firstByte))
}
