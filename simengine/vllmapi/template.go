package vllmapi

import (
	"encoding/json"

	"headgate/simengine"
)

// The chat template has the form of Qwen2.5's: each message between markers,
// its role on the first line, a default system message where there is none.
// Around one user message it comes to the 29 tokens that the published host
// spent there.
const defaultSystem = "You are a simulated engine. Your words mean nothing at all."

type message struct {
	role, text string
}

// parseMessages reads chat messages; content may be text, null or text parts.
func parseMessages(raw []json.RawMessage) ([]message, *apiError) {
	if len(raw) == 0 {
		return nil, badRequest("messages", "messages: empty: at least one message is needed")
	}
	messages := make([]message, len(raw))
	for i, data := range raw {
		var m struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return nil, badRequest("messages", "messages[%d]: %v", i, err)
		}
		if m.Role == "" {
			return nil, badRequest("messages", "messages[%d].role: missing", i)
		}
		text, e := parseContent(m.Content, i)
		if e != nil {
			return nil, e
		}
		messages[i] = message{m.Role, text}
	}
	return messages, nil
}

func parseContent(raw json.RawMessage, at int) (string, *apiError) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", badRequest("messages", "messages[%d].content: allowed are text and a list of text parts", at)
	}
	for i, p := range parts {
		if p.Type != "text" {
			return "", badRequest("messages", "messages[%d].content[%d].type: %q: this model takes text only", at, i, p.Type)
		}
		text += p.Text
	}
	return text, nil
}

// render turns a conversation into tokens. open adds the beginning of an
// answer; goOn leaves the last message unfinished, so that the answer continues
// it.
func render(messages []message, open, goOn bool) []simengine.Token {
	var tokens []simengine.Token
	if messages[0].role != "system" {
		tokens = appendMessage(tokens, message{"system", defaultSystem})
	}
	for i, m := range messages {
		tokens = appendMessage(tokens, m)
		if goOn && i == len(messages)-1 {
			return tokens[:len(tokens)-2] // without the marker and line end
		}
	}
	if open {
		tokens = append(tokens, simengine.MessageStart)
		tokens = simengine.Encode(tokens, "assistant\n")
	}
	return tokens
}

func appendMessage(tokens []simengine.Token, m message) []simengine.Token {
	tokens = append(tokens, simengine.MessageStart)
	tokens = simengine.Encode(tokens, m.role+"\n")
	tokens = simengine.Encode(tokens, m.text)
	tokens = append(tokens, simengine.MessageEnd)
	return simengine.Encode(tokens, "\n")
}
