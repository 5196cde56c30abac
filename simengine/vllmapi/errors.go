package vllmapi

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// apiError is a refusal in vLLM's shape.
type apiError struct {
	status  int
	kind    string
	param   string
	message string
}

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", param, fmt.Sprintf(format, args...)}
}

func tooLong(prompt, output, most int) *apiError {
	return badRequest("input_tokens", "This model's maximum context length is %d tokens. This request has %d input tokens and asks for %d output tokens (%d in all); at least 1 must be left for output.", most, prompt, output, prompt+output)
}

// slotFull is what an engine says whose slots divide the KV.
func slotFull(prompt, most int) *apiError {
	return badRequest("input_tokens", "This request has %d input tokens and exceeds the available context size of a slot, %d tokens; at least 1 must be left for output.", prompt, most)
}

func unknownModel(name string) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", "model", fmt.Sprintf("The model `%s` does not exist.", name)}
}

func unavailable(message string) *apiError {
	return &apiError{http.StatusServiceUnavailable, "Service Unavailable", "", message}
}

func queueFull(live, more, most int) *apiError {
	return unavailable(fmt.Sprintf("%d requests are running or waiting and %d more came; allowed are %d (max_num_queued_reqs).", live, more, most))
}

func (e *apiError) body() []byte {
	var param *string
	if e.param != "" {
		param = &e.param
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"message": e.message, "type": e.kind, "param": param, "code": e.status,
	}})
	if err != nil {
		panic("vllmapi: " + err.Error()) // strings and numbers
	}
	return body
}

func (e *apiError) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	w.Write(e.body())
}
