package simengine

import (
	"fmt"
	"strings"
)

// Policy orders the waiting requests and chooses the victims of preemption.
type Policy string

const (
	FCFS     Policy = "fcfs"     // in order of arrival; Request.Priority is ignored
	Priority Policy = "priority" // by Request.Priority, lower first, then arrival
)

// Scheduler is the kind of engine: who is admitted, and what happens when the KV
// runs out.
type Scheduler string

const (
	VLLM        Scheduler = "vllm"
	LlamaServer Scheduler = "llama-server"
)

// Config describes one engine. Start from DefaultConfig or LlamaServerConfig.
type Config struct {
	Scheduler Scheduler
	Model     Model
	// Speed is a factor on every step: 2 takes twice as long.
	Speed float64
	// NumBlocks is vLLM's num_gpu_blocks; one of them is never used. Of
	// llama-server it is n_ctx + 1, since a block is then one cell.
	NumBlocks int
	BlockSize int // tokens
	// MaxNumSeqs is how many requests run at once.
	MaxNumSeqs int
	// MaxModelLen is the longest sequence, prompt and output, in tokens. Of
	// llama-server it is the context of a slot.
	MaxModelLen int
	// MaxBatchedTokens is the budget of one step, in tokens.
	MaxBatchedTokens int
	// LongPrefillThreshold caps the chunk that one request may have of a step,
	// in tokens; 0 is no cap.
	LongPrefillThreshold int
	// ChunkedPrefill lets a prompt be spread over steps. Without it a prompt
	// waits until a step has budget for all of it.
	ChunkedPrefill bool
	// WholePromptGate admits a request only when its whole prompt fits the free
	// blocks, not just its first chunk (vLLM's scheduler_reserve_full_isl).
	WholePromptGate bool
	// Watermark is the share of the blocks that admission leaves free while
	// anything is running.
	Watermark     float64
	Policy        Policy
	PrefixCaching bool
	// OutputLag is async scheduling: a step's outcome is known one step later.
	OutputLag bool
	// MeanOutput is the mean length, in tokens, after which a request ends by
	// its own decision; 0 lets every request run to its limit.
	MeanOutput int
	// SplitCharacters makes about one generated token in this many begin a
	// character of two to four bytes that is spread over as many tokens; 0
	// generates words only.
	SplitCharacters int
}

// DefaultConfig is the published experiment's engine on its long-context
// profile: four sequences over 319 usable blocks.
func DefaultConfig() Config {
	return Config{
		Scheduler:        VLLM,
		Model:            DefaultModel(),
		Speed:            1,
		NumBlocks:        320,
		BlockSize:        16,
		MaxNumSeqs:       4,
		MaxModelLen:      4096,
		MaxBatchedTokens: 2048,
		ChunkedPrefill:   true,
		WholePromptGate:  true,
		Policy:           Priority,
		OutputLag:        true,
	}
}

// Limits of a configuration. They keep every sum in range and the memory of an
// engine in proportion to its work.
const (
	maxBlocks    = 1 << 24
	maxBlockSize = 1 << 12
	maxSeqs      = 1 << 16
	maxLen       = 1 << 24
)

// Validate reports every field with an impossible value and every combination
// in which a request could wait for ever.
func (c *Config) Validate(bad func(path string, value any, allowed string)) {
	c.Model.Validate(func(path string, value any, allowed string) { bad("model."+path, value, allowed) })
	if !(c.Speed > 0 && c.Speed <= 1000) {
		bad("speed", c.Speed, "a factor above 0 and up to 1000; 2 makes every step take twice as long")
	}
	ints := true
	between := func(path string, v, lo, hi int, what string) {
		if v < lo || v > hi {
			ints = false
			bad(path, v, fmt.Sprintf("%s from %d to %d", what, lo, hi))
		}
	}
	between("num_gpu_blocks", c.NumBlocks, 2, maxBlocks, "blocks")
	between("block_size", c.BlockSize, 1, maxBlockSize, "tokens")
	between("max_num_seqs", c.MaxNumSeqs, 1, maxSeqs, "sequences")
	between("max_model_len", c.MaxModelLen, 2, maxLen, "tokens")
	between("max_num_batched_tokens", c.MaxBatchedTokens, 1, maxLen, "tokens")
	between("long_prefill_token_threshold", c.LongPrefillThreshold, 0, maxLen, "tokens")
	between("mean_output", c.MeanOutput, 0, maxLen, "tokens")
	between("split_characters", c.SplitCharacters, 0, maxLen, "tokens")
	if ints && c.MaxModelLen > (c.NumBlocks-1)*c.BlockSize {
		bad("max_model_len", c.MaxModelLen, fmt.Sprintf("at most the KV pool's %d tokens, (num_gpu_blocks - 1) x block_size", (c.NumBlocks-1)*c.BlockSize))
	}
	if ints && !c.ChunkedPrefill && c.MaxBatchedTokens < c.MaxModelLen {
		bad("max_num_batched_tokens", c.MaxBatchedTokens, fmt.Sprintf("at least max_model_len %d while chunked prefill is off", c.MaxModelLen))
	}
	if !c.ChunkedPrefill && c.LongPrefillThreshold > 0 {
		bad("long_prefill_token_threshold", c.LongPrefillThreshold, "0 while chunked prefill is off")
	}
	if !(c.Watermark >= 0 && c.Watermark < 1) {
		bad("watermark", c.Watermark, "a share from 0 to below 1")
	}
	if c.Policy != FCFS && c.Policy != Priority {
		bad("policy", c.Policy, "fcfs, priority")
	}
	switch c.Scheduler {
	case VLLM:
	case LlamaServer:
		c.validateSlots(bad)
	default:
		bad("scheduler", c.Scheduler, "vllm, llama-server")
	}
}

func (c *Config) err() error {
	var all []string
	c.Validate(func(path string, value any, allowed string) {
		all = append(all, fmt.Sprintf("%s: %v: allowed: %s", path, value, allowed))
	})
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("engine: %s", strings.Join(all, "; "))
}
