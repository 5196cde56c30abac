package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"headgate/probe"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
	"headgate/telemetry"
)

func engineCommand() *cobra.Command {
	cfg := vllmapi.Config{Engine: simengine.DefaultConfig(), Version: telemetry.ReadBuild().Version}
	var listen, model, policy, layout string
	cmd := &cobra.Command{
		Use: "engine", Short: "Serve a simulated engine with vLLM's API, for trying things out", Args: cobra.NoArgs,
		Long: `Serve a simulated inference engine: vLLM's API, metrics, scheduler, priorities
and abort behaviour, in real time, with the step times of a model file. Its text
is words without sense; every token is a hash over all tokens before it, so that
an answer that was continued wrongly shows. It is no engine for real use, and
says so in its model's name and in /version.

With --kv-layout per-slot the KV is divided among the slots, as llama-server's can
be: a sequence has its slot's part and no more, waiting requests are taken in order
of arrival, and nothing is cached. It is for what has to tell the two apart.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if model != "" {
				m, err := simengine.LoadModel(model)
				if err != nil {
					return err
				}
				cfg.Engine.Model = m
			}
			cfg.Engine.Policy = simengine.Policy(policy)
			switch layout {
			case probe.Shared:
			case probe.PerSlot:
				for _, flag := range sharedFlags {
					if cmd.Flags().Changed(flag) {
						return fmt.Errorf("--%s: not with --kv-layout %s", flag, layout)
					}
				}
				cfg = cfg.PerSlot()
			default:
				return fmt.Errorf("--kv-layout is %q: allowed are %s and %s", layout, probe.Shared, probe.PerSlot)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runEngine(ctx, cfg, listen, func(s *vllmapi.Server, at net.Addr) {
				fmt.Fprintf(cmd.OutOrStdout(), "%s on http://%s\n", s.ModelName(), at)
			})
		},
	}
	f, e := cmd.Flags(), &cfg.Engine
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "address to serve at; port 0 picks a free one, which is printed")
	f.StringVar(&model, "engine-model", "", "file with the step-time model (default: the M1's, built in)")
	f.Float64Var(&e.Speed, "speed", e.Speed, "factor on every step's time: 2 takes twice as long")
	f.IntVar(&e.MaxNumSeqs, "max-num-seqs", e.MaxNumSeqs, "sequences that run at once")
	f.StringVar(&layout, "kv-layout", probe.Shared, "shared: any sequence may use all of the KV; per-slot: each slot has its equal part")
	f.IntVar(&e.NumBlocks, "num-gpu-blocks", e.NumBlocks, "KV blocks, of which one is never used")
	f.IntVar(&e.BlockSize, "block-size", e.BlockSize, "tokens in a KV block")
	f.IntVar(&e.MaxModelLen, "max-model-len", e.MaxModelLen, "longest sequence, prompt and output, in tokens")
	f.IntVar(&e.MaxBatchedTokens, "max-num-batched-tokens", e.MaxBatchedTokens, "tokens of one step")
	f.IntVar(&e.LongPrefillThreshold, "long-prefill-token-threshold", e.LongPrefillThreshold, "most tokens of one prompt in a step; 0 is no such limit")
	f.BoolVar(&e.PrefixCaching, "enable-prefix-caching", e.PrefixCaching, "keep the blocks of ended sequences for reuse")
	f.StringVar(&policy, "scheduling-policy", string(e.Policy), "fcfs or priority")
	f.IntVar(&e.MeanOutput, "mean-output", e.MeanOutput, "mean tokens after which an answer ends by itself; 0 runs to its limit")
	f.IntVar(&e.SplitCharacters, "split-characters", e.SplitCharacters, "one token in so many begins a character that several tokens make up; 0 is none")
	f.StringVar(&cfg.ModelName, "served-model-name", "", "name of the model (default: headgate-simulated-<step-time model>)")
	f.BoolVar(&cfg.DevMode, "dev-mode", false, "open /abort_requests and /server_info")
	f.BoolVar(&cfg.PerRequestMetrics, "enable-per-request-metrics", false, "add a request's timings to its usage")
	f.BoolVar(&cfg.PromptTokensDetails, "enable-prompt-tokens-details", false, "add cached prompt tokens to usage")
	f.StringVar(&cfg.TracesEndpoint, "otlp-traces-endpoint", "", "URL to which a span of every finished request is sent, OTLP over HTTP; serve has one with admin.otlp_traces")
	f.DurationVar(&cfg.TracesDelay, "otlp-traces-delay", 0, "for how long spans are gathered (default 5s)")
	f.IntVar(&cfg.MaxQueuedRequests, "max-num-queued-reqs", 0, "refuse beyond so many requests, running and waiting; 0 never does")
	return cmd
}

// sharedFlags are about what slots with a KV of their own do not have.
var sharedFlags = []string{"long-prefill-token-threshold", "enable-prefix-caching", "scheduling-policy"}

// runEngine serves a simulated engine until ctx ends; ready is called once it
// listens.
func runEngine(ctx context.Context, cfg vllmapi.Config, listen string, ready func(*vllmapi.Server, net.Addr)) error {
	s, err := vllmapi.New(cfg)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return listenHint(fmt.Errorf("engine: %w", err), "--listen", "port 0, which picks a free one")
	}
	web := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	stopped := make(chan struct{})
	go func() {
		s.Run(ctx)
		_ = web.Close() // ends what is left of the streams
		close(stopped)
	}()
	ready(s, l.Addr())
	err = web.Serve(l)
	<-stopped
	if ctx.Err() != nil {
		return nil
	}
	return err
}
