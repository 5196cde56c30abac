package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"headgate/engine"
	"headgate/simengine/vllmapi"
	"headgate/wire"
)

// TestTokens: the ids are those that the engine then makes of the prompt.
func TestTokens(t *testing.T) {
	cfg := vllmapi.Many(1)
	cfg.ModelName = "m"
	server, err := vllmapi.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); server.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	var asked string
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			body, _ := io.ReadAll(r.Body)
			asked = string(body)
			r.Body = io.NopCloser(strings.NewReader(asked))
		}
		server.Handler().ServeHTTP(w, r)
	}))
	defer front.Close()
	a := at(t, front.URL, nil)
	for _, tt := range []struct {
		api         wire.API
		body, asked string // "": nothing is
	}{
		{wire.Chat, `"messages":[{"role":"user","content":"hello world"}],"max_tokens":3,"stream":false,"temperature":1`, `"messages":[{"role":"user","content":"hello world"}]`},
		{wire.Chat, `"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true,"add_generation_prompt":false,"chat_template_kwargs":{"x":1},"tools":null,"prompt":"z"`,
			`"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true,"add_generation_prompt":false,"chat_template_kwargs":{"x":1}`},
		{wire.Completions, `"prompt":"hello \"world\"","max_tokens":3,"add_special_tokens":true,"messages":[]`, `"prompt":"hello \"world\"","add_special_tokens":true`},
		{wire.Completions, `"prompt":["hello"],"max_tokens":3`, `"prompt":"hello"`},
		{wire.Completions, `"prompt":[1,2,3],"max_tokens":3`, ""},
		{wire.Completions, `"prompt":[[4,5]],"max_tokens":3`, ""},
	} {
		asked = ""
		body := `{"model":"m",` + tt.body + `}`
		ids, err := a.Tokens(t.Context(), tt.api, []byte(body))
		if err != nil {
			t.Errorf("%s: %v", tt.body, err)
		}
		if tt.asked != "" {
			tt.asked = `{"model":"m",` + tt.asked + `}`
		}
		if asked != tt.asked {
			t.Errorf("%s: asked\n%s\nwant\n%s", tt.body, asked, tt.asked)
		}
		res, err := http.Post(front.URL+tt.api.Path(), "application/json", strings.NewReader(strings.TrimSuffix(body, "}")+`,"return_token_ids":true}`))
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		made := gjson.GetBytes(answer, "prompt_token_ids")
		if !made.Exists() {
			made = gjson.GetBytes(answer, "choices.0.prompt_token_ids")
		}
		var want []int32
		if err := json.Unmarshal([]byte(made.Raw), &want); err != nil || !slices.Equal(ids, want) {
			t.Errorf("%s: ids %v, the engine makes %v of it (%v): %s", tt.body, ids, want, err, answer)
		}
	}
}

// TestTokensRefused: what is no list of ids is an error, and so is an engine that
// takes too long or says too much.
func TestTokensRefused(t *testing.T) {
	var status int
	var answer string
	release := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer == "late" {
			<-release
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer front.Close()
	defer close(release)
	patient := at(t, front.URL, func(c *engine.Config) { c.ScrapeTimeout = time.Minute })
	hasty := at(t, front.URL, func(c *engine.Config) { c.ScrapeTimeout = 20 * time.Millisecond })
	for _, tt := range []struct {
		status       int
		answer, want string
	}{
		{404, "", "status 404"},
		{200, "", "no list of token ids"},
		{200, `{"tokens":7}`, "no list of token ids"},
		{200, `{"tokens":[]}`, "not one text"},
		{200, `{"tokens":[1,-2]}`, "whole numbers from 0"},
		{200, `{"tokens":[1.5]}`, "whole numbers from 0"},
		{200, `{"tokens":["1"]}`, "whole numbers from 0"},
		{200, `{"tokens":[4294967296]}`, "whole numbers from 0"},
		{200, strings.Repeat(" ", maxTokenized+1), fmt.Sprint(maxTokenized)},
		{200, "late", "scrape_timeout"},
	} {
		status, answer = tt.status, tt.answer
		a := patient
		if answer == "late" {
			a = hasty
		}
		if ids, err := a.Tokens(t.Context(), wire.Completions, []byte(`{"prompt":"x"}`)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d %.40s: %v, %v, want an error with %q", tt.status, tt.answer, ids, err, tt.want)
		}
	}
	for _, body := range []string{`{"prompt":["a","b"]}`, `{"prompt":[[1],[2]]}`, `{"prompt":[1,"a"]}`, `{"prompt":[]}`} {
		if ids, err := patient.Tokens(t.Context(), wire.Completions, []byte(body)); err == nil {
			t.Errorf("%s: %v, want an error", body, ids)
		}
	}
}

// at is an adapter of an engine at a URL.
func at(t *testing.T, url string, change func(*engine.Config)) *Adapter {
	t.Helper()
	var cfg engine.Config
	cfg.SetDefaults()
	cfg.Kind, cfg.URL = engine.VLLM, url
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}
