package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"headgate/config"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/telemetry"
)

//go:embed demo.yaml
var demoYAML string

// startDemo starts the demo's engine on a free port and makes the configuration
// of a gateway in front of it. stop ends the engine, and removes files and batches.
func startDemo(ctx context.Context) (cfg *config.Config, stop func(), err error) {
	engine := simengine.DefaultConfig()
	engine.PrefixCaching = true
	engine.NumBlocks = 2048
	dir, err := os.MkdirTemp("", "headgate-demo-")
	if err != nil {
		return nil, nil, fmt.Errorf("a folder for files and batches: %w", err)
	}
	at := make(chan net.Addr, 1)
	failed := make(chan error, 1)
	// The engine outlives the signal that starts the drain.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		failed <- runEngine(ctx, vllmapi.Config{Engine: engine, Version: telemetry.ReadBuild().Version}, "127.0.0.1:0", func(_ *vllmapi.Server, a net.Addr) { at <- a })
	}()
	select {
	case err := <-failed:
		cancel()
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	case a := <-at:
		stop = func() {
			cancel()
			<-failed
			_ = os.RemoveAll(dir) // what is left of it is in the system's folder for such
		}
		c, problems := config.Parse("demo.yaml", []byte(strings.ReplaceAll(demoYAML, "ENGINE", a.String())))
		if c == nil {
			stop()
			return nil, nil, fmt.Errorf("the built-in configuration is broken: %v", problems)
		}
		c.Batch.Dir = dir
		return c, stop, nil
	}
}

const demoModel = "headgate-simulated-m1"

// printDemo tells how to use the demo, ready to paste.
func printDemo(w io.Writer, s *server, key string) {
	base := "http://" + s.clients.Addr().String()
	fmt.Fprintf(w, `Headgate is in front of a simulated engine: four slots, three of them interactive's.
Watch it in a browser:

  %[3]s/console/

An interactive request:

  curl -N %[1]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"%[2]s","stream":true,"max_tokens":16,"messages":[{"role":"user","content":"hello"}]}'

The same as batch work, which may use what is idle:

  curl %[1]s/v1/chat/completions -H 'Content-Type: application/json' -H 'Headgate-Class: batch' \
    -d '{"model":"%[2]s","max_tokens":64,"messages":[{"role":"user","content":"summarise"}]}'

With the official SDK (Python):

  from openai import OpenAI
  client = OpenAI(base_url="%[1]s/v1", api_key="demo")
  print(client.chat.completions.create(model="%[2]s", max_tokens=16,
      messages=[{"role": "user", "content": "hello"}]).choices[0].message.content)

A file of requests, as a batch (as OpenAI's Batch API has it, so its SDKs do it too):

  echo '{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"%[2]s","max_tokens":16,"messages":[{"role":"user","content":"hello"}]}}' > requests.jsonl
  headgate batch submit requests.jsonl --base-url %[1]s/v1 --api-key demo --results results.jsonl

Files and batches are gone when the demo ends. It asks for no key; for clients that
want one:

  %[4]s, or demo

What every slot and queue is doing, in text:

  curl %[3]s/debug/admission

`, base, demoModel, "http://"+s.admin.Addr().String(), key)
}

// sampleLoad keeps six batch requests in the demo, and every few seconds sends interactive
// ones, one to three at once, until ctx ends: one finds the unlent slot, of more the others
// recall what is lent. It says how the interactive ones fared.
func sampleLoad(ctx context.Context, out io.Writer, base string) {
	for i := range 6 {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				prompt := fmt.Sprintf("batch item %d of worker %d: %s", n, i, strings.Repeat("many words of a long document to be summarised ", 60))
				if _, err := ask(ctx, base, "batch", prompt, 128); err != nil {
					pause(ctx, time.Second)
				}
			}
		}()
	}
	for n := 0; pause(ctx, 5*time.Second); n++ {
		answers := make(chan string)
		for range n%3 + 1 {
			go func() {
				a, err := ask(ctx, base, "interactive", "a short question", 16)
				if err != nil {
					answers <- err.Error()
					return
				}
				answers <- fmt.Sprintf("%s after %s ms, first token after %d ms, done after %d ms",
					a.decision, a.queued, a.first.Milliseconds(), a.total.Milliseconds())
			}()
		}
		for range n%3 + 1 {
			if said := <-answers; ctx.Err() == nil {
				fmt.Fprintln(out, "interactive:", said)
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

type sampleAnswer struct {
	decision, queued string
	first, total     time.Duration
}

func ask(ctx context.Context, base, class, prompt string, tokens int) (a sampleAnswer, err error) {
	body, err := json.Marshal(map[string]any{
		"model": demoModel, "stream": true, "max_tokens": tokens,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Headgate-Class", class)
	start := time.Now()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return a, fmt.Errorf("answered %s", res.Status)
	}
	a.decision, a.queued = res.Header.Get("Headgate-Decision"), res.Header.Get("Headgate-Queue-Ms")
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if a.first == 0 && strings.HasPrefix(lines.Text(), "data:") {
			a.first = time.Since(start)
		}
	}
	a.total = time.Since(start)
	return a, nil
}
