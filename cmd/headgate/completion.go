package main

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"headgate/config"
	"headgate/gateway"
	"headgate/relay"
)

// completions has shells complete values of flags: those that a flag's usage lists, files
// where it wants one, and names by the configuration or the gateway that the line names.
func completions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completions(c)
	}
	complete := func(name string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, f) // it fails for a flag that is not there
		}
	}
	_ = cmd.MarkFlagFilename("config", "yaml", "yml") // as above
	for _, name := range []string{"output", "kind", "kv-layout", "scheduling-policy"} {
		if f := cmd.Flags().Lookup(name); f != nil {
			complete(name, cobra.FixedCompletions(listedValues(f.Usage), cobra.ShellCompDirectiveNoFileComp))
		}
	}
	complete("pool", fromLine(poolsOf))
	complete("engine", fromLine(enginesOf))
	complete("set", fromLine(profilesOf))
	for _, name := range []string{"admin", "admin-key", "tenant", "reason", "timeout", "for", "every", "expires", "overlap"} {
		complete(name, cobra.NoFileCompletions)
	}
}

// listedValues are the words of a usage that lists them, such as "table or json".
func listedValues(usage string) (all []cobra.Completion) {
	for _, word := range values.FindAllString(usage, -1) {
		if !slices.Contains(all, word) {
			all = append(all, word)
		}
	}
	return all
}

var values = regexp.MustCompile(`\b(table|json|jsonl|csv|svg|yaml|text|vllm|sglang|llamacpp|openai|shared|per-slot|fcfs|priority)\b`)

// completionTime is how long somebody who has pressed tab waits.
const completionTime = time.Second

// fromLine completes names that f finds. What goes wrong finds none.
func fromLine(f func(ctx context.Context, cmd *cobra.Command) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		var all []cobra.Completion
		for _, name := range f(ctx, cmd) {
			if strings.HasPrefix(name, begun) {
				all = append(all, name)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// value is what a flag has on the line; "": it has none, or there is no such flag.
func value(cmd *cobra.Command, name string) string {
	if f := cmd.Flags().Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// configOf is the configuration that the line names; nil: none.
func configOf(cmd *cobra.Command) *config.Config {
	file := value(cmd, "config")
	if file == "" {
		return nil
	}
	cfg, _, err := config.Load(file)
	if err != nil {
		return nil
	}
	return cfg
}

// askedOf reads what the gateway of the line says.
func askedOf(ctx context.Context, cmd *cobra.Command, path string, to any) {
	admin := adminClient{url: value(cmd, "admin")}
	admin.tls.CA, admin.tls.Cert, admin.tls.Key = value(cmd, "cacert"), value(cmd, "cert"), value(cmd, "key-file")
	if body, err := admin.askWithin(ctx, http.MethodGet, path, nil); err == nil {
		_ = json.Unmarshal(body, to) // what is not understood has no names
	}
}

func poolsOf(ctx context.Context, cmd *cobra.Command) (names []string) {
	if cfg := configOf(cmd); cfg != nil {
		for i := range cfg.Pools {
			names = append(names, cfg.Pools[i].Name)
		}
		return names
	}
	var views []gateway.SwitchView
	askedOf(ctx, cmd, "/api/switches", &views)
	for _, v := range views {
		names = append(names, v.Pool)
	}
	return names
}

func enginesOf(_ context.Context, cmd *cobra.Command) (names []string) {
	if cfg := configOf(cmd); cfg != nil {
		for i := range cfg.Pools {
			for k := range cfg.Pools[i].Engines {
				names = append(names, cfg.Pools[i].Engines[k].Name)
			}
		}
	}
	return names
}

// profilesOf are the serving profiles of the pools that re-plan, or of the one on the line.
func profilesOf(ctx context.Context, cmd *cobra.Command) (names []string) {
	var views []relay.PlanView
	askedOf(ctx, cmd, "/api/plan", &views)
	for i := range views {
		if pool := value(cmd, "pool"); pool == "" || pool == views[i].Pool {
			for _, p := range views[i].Profiles {
				names = append(names, p.Name)
			}
		}
	}
	return append(names, "auto")
}

// keysOf completes names of keys in the file that the line names.
func keysOf(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return fromLine(func(context.Context, *cobra.Command) (names []string) {
		f, err := loadKeys(value(cmd, "file"))
		if err != nil {
			return nil
		}
		for _, k := range f.Keys {
			names = append(names, k.Name)
		}
		return names
	})(cmd, args, begun)
}
