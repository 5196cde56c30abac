package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Requests from the test itself: unlike the SDK's process they are under way at
// once, and end when the test says.

// postAs is post by a caller with a key.
func postAs(ctx context.Context, url, key string, body object) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	return http.DefaultClient.Do(req)
}

// openStreamAs is openStream by a caller with a key.
func openStreamAs(ctx context.Context, url, key string, body object) (*stream, error) {
	res, err := postAs(ctx, url, key, body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return nil, fmt.Errorf("%s: %s", res.Status, text)
	}
	return &stream{body: res.Body, lines: bufio.NewScanner(res.Body)}, nil
}

// streamAs makes a streamed request by a caller with a key, and returns nil once
// its answer has ended as it should.
func streamAs(ctx context.Context, url, key string, body object) error {
	s, err := openStreamAs(ctx, url, key, body)
	if err != nil {
		return err
	}
	defer s.close()
	for err == nil {
		err = s.next()
	}
	switch {
	case s.finished:
		return nil
	case ctx.Err() != nil:
		return ctx.Err() // what was left of an event in the buffer tells nothing
	}
	return err
}
