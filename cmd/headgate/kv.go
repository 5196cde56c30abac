package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"headgate/kv"
)

// maxConfigJSON is more than any public config.json has, in bytes.
const maxConfigJSON = 4 << 20

func kvCommand() *cobra.Command {
	var file, as, budget, engine, flags, output string
	var q kv.Question
	cmd := &cobra.Command{
		Use: "kv --config FILE", Short: "Compute what a model's KV cache costs and what a budget of it holds", Args: cobra.NoArgs,
		Long: `Compute the KV cache of a model on an engine: bytes of a token, of a sequence and
of sessions, how many sessions of a context a budget holds and how long a context
so many sessions may have, whether sessions share one pool or each has its slot's
part of it, and what a shared prefix saves.

The model is a config.json (or the folder that has one) or a .gguf file, of which
only the head is read. Sizes have to say their unit: GB is 10^9 bytes, GiB is 2^30.
Every figure is of one card, and the last table says where it comes from. What is
not understood is an error that names the key.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("--output is %q: allowed are table and json", output)
			}
			var err error
			if q.Engine, err = kv.ReadEngine(engine, flags); err != nil {
				return fmt.Errorf("--engine, --flags: %w", err)
			}
			if budget != "" {
				q.Said = budget
				if q.Budget, err = kv.ParseBytes(budget); err != nil {
					return fmt.Errorf("--budget: %w", err)
				}
			}
			for _, name := range []string{"sessions", "context", "shared-prefix", "tp", "pp", "block-size"} {
				if n, err := cmd.Flags().GetInt64(name); err == nil && cmd.Flags().Changed(name) && n < 1 {
					return fmt.Errorf("--%s is %d: allowed are integers from 1", name, n)
				}
			}
			if q.Model, err = readModel(file, as); err != nil {
				return err
			}
			rep, err := kv.Compute(q)
			if err != nil {
				return err
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(rep)
			}
			return rep.WriteTable(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "the model: a config.json, a folder that has one, or a .gguf file")
	_ = cmd.MarkFlagRequired("config")
	f.StringVar(&as, "as", "", "read config.json as one of this model_type, whatever it says it is")
	f.StringVar(&budget, "budget", "", "memory for KV on one card, such as 4.7GB (10^9) or 4.7GiB (2^30)")
	f.Int64Var(&q.Sessions, "sessions", 0, "sessions at once")
	f.Int64Var(&q.Context, "context", 0, "tokens of each session, prompt and output")
	f.Int64Var(&q.Prefix, "shared-prefix", 0, "tokens that all sessions begin with")
	f.StringVar(&engine, "engine", "", "engine: "+strings.Join(kv.Engines(), ", "))
	f.StringVar(&flags, "flags", "", "the engine's own flags, as one argument")
	f.StringVar(&q.CacheType, "cache-dtype", "", "how keys and values are stored: auto, f16, bf16, fp8, int8, q8_0, q4_0, fp8_ds_mla, ...")
	f.Int64Var(&q.TP, "tp", 0, "tensor parallel size")
	f.Int64Var(&q.PP, "pp", 0, "pipeline parallel size")
	f.Int64Var(&q.Block, "block-size", 0, "tokens of a block")
	f.StringVar(&output, "output", "table", "table or json")
	return cmd
}

// readModel reads what a file says of its model.
func readModel(path, as string) (*kv.Model, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	var m *kv.Model
	if strings.HasSuffix(path, ".gguf") {
		if as != "" {
			return nil, fmt.Errorf("--as: not with a .gguf file, whose architecture is the converter's")
		}
		m, err = kv.ReadGGUF(f)
	} else {
		var b []byte
		if b, err = io.ReadAll(io.LimitReader(f, maxConfigJSON+1)); err == nil {
			if len(b) > maxConfigJSON {
				return nil, fmt.Errorf("%s: it is larger than %d bytes", path, maxConfigJSON)
			}
			m, err = kv.ReadConfig(b, as)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
