package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// batchObject is a batch as the server tells it.
type batchObject struct {
	ID       string            `json:"id"`
	Status   string            `json:"status"`
	Endpoint string            `json:"endpoint"`
	Window   string            `json:"completion_window"`
	Input    string            `json:"input_file_id"`
	Output   string            `json:"output_file_id"`
	Error    string            `json:"error_file_id"`
	Created  int64             `json:"created_at"`
	Started  int64             `json:"in_progress_at"`
	Expires  int64             `json:"expires_at"`
	Metadata map[string]string `json:"metadata"`
	Counts   struct {
		Total     int64 `json:"total"`
		Completed int64 `json:"completed"`
		Failed    int64 `json:"failed"`
	} `json:"request_counts"`
	Usage *struct {
		Input  int64 `json:"input_tokens"`
		Output int64 `json:"output_tokens"`
	} `json:"usage"`
	Errors *struct {
		Data []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Line    *int64 `json:"line"`
		} `json:"data"`
	} `json:"errors"`

	raw json.RawMessage
}

// UnmarshalJSON keeps the whole, too.
func (b *batchObject) UnmarshalJSON(text []byte) error {
	type plain batchObject
	if err := json.Unmarshal(text, (*plain)(b)); err != nil {
		return err
	}
	b.raw = slices.Clone(text)
	return nil
}

func (b *batchObject) ended() bool {
	return slices.Contains([]string{"failed", "completed", "expired", "cancelled"}, b.Status)
}

// failure is why a batch that has ended is no success; nil: it is one.
func (b *batchObject) failure() error {
	if b.Status == "completed" {
		return nil
	}
	why := ""
	if b.Errors != nil {
		const shown = 10
		for i, e := range b.Errors.Data {
			if i == shown {
				why += fmt.Sprintf("\n  and %d more", len(b.Errors.Data)-shown)
				break
			}
			why += "\n  "
			if e.Line != nil {
				why += fmt.Sprintf("line %d: ", *e.Line)
			}
			why += e.Message
		}
	}
	return fmt.Errorf("batch %s is %s%s", b.ID, b.Status, why)
}

// batchFlags are what every batch command has.
type batchFlags struct{ base, key string }

func (f *batchFlags) add(cmd *cobra.Command) {
	p := cmd.PersistentFlags()
	p.StringVar(&f.base, "base-url", cmp.Or(os.Getenv("OPENAI_BASE_URL"), "http://127.0.0.1:8080/v1"), "the server's URL with /v1; by default OPENAI_BASE_URL")
	// The environment's key is no default: help would print it.
	p.StringVar(&f.key, "api-key", "", "the key to send; by default OPENAI_API_KEY, which other users of the machine don't see")
}

func (f *batchFlags) client(cmd *cobra.Command) (*batchClient, error) {
	return newBatchClient(f.base, cmp.Or(f.key, os.Getenv("OPENAI_API_KEY")), cmd.ErrOrStderr())
}

func batchCommand() *cobra.Command {
	var f batchFlags
	cmd := &cobra.Command{
		Use: "batch", Short: "Hand files of requests to an OpenAI-compatible Batch API, and get results back", Args: cobra.NoArgs,
		Long: `Hand files of requests to a Batch API, Headgate's or any other that speaks OpenAI's,
and get results back. Names and results go to standard output, all else to standard
error.`,
	}
	f.add(cmd)
	cmd.AddCommand(batchSubmitCommand(&f), batchStatusCommand(&f), batchListCommand(&f), batchCancelCommand(&f), batchResultsCommand(&f))
	return cmd
}

func batchSubmitCommand(f *batchFlags) *cobra.Command {
	var endpoint, window, results string
	var metadata []string
	var watch bool
	cmd := &cobra.Command{
		Use: "submit FILE", Short: "Upload a file of requests and make a batch of it", Args: cobra.ExactArgs(1),
		Long: `Upload a file of requests, one in a line, and make a batch of it. Its id is printed.

With --watch it is followed to its end; interrupted, the batch goes on. With --results
OUT the lines that succeeded are then in OUT, and those that failed in OUT.errors. A
batch that failed, expired or was cancelled is an error; one in which single requests
failed is none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			pairs, err := metadataPairs(metadata)
			if err != nil {
				return err
			}
			if endpoint == "" {
				if endpoint, err = endpointOf(args[0]); err != nil {
					return err
				}
			}
			shown := newProgress(cmd.ErrOrStderr())
			input, err := c.upload(ctx, args[0], shown.bytes("uploaded"))
			shown.end()
			if err != nil {
				return err
			}
			ask := map[string]any{"input_file_id": input, "endpoint": endpoint, "completion_window": window}
			if len(pairs) > 0 {
				ask["metadata"] = pairs
			}
			var b batchObject
			if err := c.post(ctx, "make a batch of "+input, "/batches", ask, &b); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), b.ID)
			if !watch && results == "" {
				return nil
			}
			if err := c.watch(ctx, &b, shown); err != nil {
				return err
			}
			if results != "" {
				if err := c.results(ctx, &b, results, shown); err != nil {
					return err
				}
			}
			return b.failure()
		},
	}
	p := cmd.Flags()
	p.StringVar(&endpoint, "endpoint", "", "the endpoint of all requests, such as /v1/chat/completions; by default the url of the first")
	p.StringVar(&window, "window", "24h", "the time within which the batch is to be done")
	p.StringArrayVar(&metadata, "metadata", nil, "key=value to be kept with the batch; several times for several")
	p.BoolVar(&watch, "watch", false, "follow the batch to its end")
	p.StringVar(&results, "results", "", "follow the batch to its end, and write what became of its requests to this file")
	return cmd
}

func metadataPairs(texts []string) (map[string]string, error) {
	pairs := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if _, twice := pairs[key]; !ok || key == "" || twice {
			return nil, fmt.Errorf("--metadata is %q, must be key=value with a key of its own", text)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// endpointOf is the url of a file's first request.
func endpointOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	const longest = 64 << 20
	line, err := bufio.NewReader(io.LimitReader(file, longest)).ReadBytes('\n')
	if err != nil && err != io.EOF {
		return "", err
	}
	var first struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(line, &first); err != nil || first.URL == "" {
		return "", fmt.Errorf("%s: its first line is no request with a url; say --endpoint", path)
	}
	return first.URL, nil
}

const watchEvery = time.Second

// watch follows a batch to its end. b is what it then is.
func (c *batchClient) watch(ctx context.Context, b *batchObject, shown *progress) error {
	defer shown.end()
	var rate batchRate
	for {
		now := time.Now()
		shown.show(now, b.Status, b.line(rate.add(now, b.Counts.Completed+b.Counts.Failed)))
		if b.ended() {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("batch %s goes on: headgate batch status %s", b.ID, b.ID)
		case <-time.After(watchEvery):
		}
		id := b.ID
		*b = batchObject{}
		if err := c.get(ctx, "look at "+id, "/batches/"+url.PathEscape(id), b); err != nil {
			return fmt.Errorf("batch %s may go on: %w", id, err)
		}
	}
}

// results writes a batch's files to a path and beside it. A file that the batch does
// not have is empty at the path, and not there beside it.
func (c *batchClient) results(ctx context.Context, b *batchObject, path string, shown *progress) error {
	defer shown.end()
	if b.Output == "" {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
	} else if err := c.save(ctx, b.Output, path, shown.bytes("downloaded")); err != nil {
		return err
	}
	if b.Error == "" {
		return nil
	}
	return c.save(ctx, b.Error, path+".errors", shown.bytes("downloaded"))
}

func batchStatusCommand(f *batchFlags) *cobra.Command {
	var output string
	var watch bool
	cmd := &cobra.Command{
		Use: "status ID", Short: "Print how far a batch has come", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if err := checkOutput(output); err != nil {
				return err
			}
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			b, err := c.batch(ctx, args[0])
			if err != nil {
				return err
			}
			if watch {
				if err := c.watch(ctx, b, newProgress(cmd.ErrOrStderr())); err != nil {
					return err
				}
			}
			return b.print(cmd.OutOrStdout(), output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().BoolVar(&watch, "watch", false, "follow the batch to its end first")
	return cmd
}

func (c *batchClient) batch(ctx context.Context, id string) (*batchObject, error) {
	b := &batchObject{}
	return b, c.get(ctx, "look at "+id, "/batches/"+url.PathEscape(id), b)
}

func (b *batchObject) print(to io.Writer, output string) error {
	if output == "json" {
		_, err := fmt.Fprintf(to, "%s\n", b.raw)
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	row := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	row("id", b.ID)
	row("status", b.line(0))
	row("endpoint", b.Endpoint)
	row("created", moment(b.Created))
	row("expires", moment(b.Expires))
	row("input file", b.Input)
	if b.Output != "" {
		row("output file", b.Output)
	}
	if b.Error != "" {
		row("error file", b.Error)
	}
	if b.Usage != nil {
		row("tokens", fmt.Sprintf("%d of prompts, %d of answers", b.Usage.Input, b.Usage.Output))
	}
	for _, k := range sortedKeys(b.Metadata) {
		row("metadata "+k, b.Metadata[k])
	}
	if b.ended() && b.Errors != nil {
		row("why", b.failure())
	}
	return w.Flush()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func moment(unix int64) string {
	if unix == 0 {
		return "-"
	}
	return time.Unix(unix, 0).UTC().Format(time.RFC3339)
}

func batchListCommand(f *batchFlags) *cobra.Command {
	var output string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "Print batches, newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			if limit < 1 {
				return fmt.Errorf("--limit is %d, must be at least 1", limit)
			}
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			all, err := c.list(cmd.Context(), limit)
			if err != nil {
				return err
			}
			to := cmd.OutOrStdout()
			if output == "json" {
				for _, b := range all {
					fmt.Fprintf(to, "%s\n", b.raw)
				}
				return nil
			}
			w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tSTATUS\tDONE\tFAILED\tTOTAL\tCREATED\tEXPIRES\tENDPOINT")
			for _, b := range all {
				n := &b.Counts
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", b.ID, b.Status, n.Completed+n.Failed, n.Failed, n.Total, moment(b.Created), moment(b.Expires), b.Endpoint)
			}
			return w.Flush()
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, or json: one batch in a line")
	cmd.Flags().IntVar(&limit, "limit", 20, "how many")
	return cmd
}

// list returns the newest batches, so many at most.
func (c *batchClient) list(ctx context.Context, limit int) ([]batchObject, error) {
	const most = 100 // of a page
	var all []batchObject
	for after := ""; ; {
		var page struct {
			Data []batchObject `json:"data"`
			More bool          `json:"has_more"`
		}
		q := url.Values{"limit": {fmt.Sprint(min(limit-len(all), most))}}
		if after != "" {
			q.Set("after", after)
		}
		if err := c.get(ctx, "list batches", "/batches?"+q.Encode(), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if !page.More || len(page.Data) == 0 || len(all) >= limit {
			return all[:min(len(all), limit)], nil
		}
		after = all[len(all)-1].ID
	}
}

func batchCancelCommand(f *batchFlags) *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "End a batch; what is done of it stays", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			var b batchObject
			if err := c.post(cmd.Context(), "cancel "+args[0], "/batches/"+url.PathEscape(args[0])+"/cancel", nil, &b); err != nil {
				return err
			}
			return b.print(cmd.OutOrStdout(), "table")
		},
	}
}

func batchResultsCommand(f *batchFlags) *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "results ID", Short: "Get what became of a batch's requests", Args: cobra.ExactArgs(1),
		Long: `Get what became of a batch's requests: on standard output those that succeeded and
then those that failed, or with --output OUT the ones in OUT and the others in
OUT.errors. A download that broke off is gone on with, by the same command too.

Of a batch that has not ended, a server that tells them (Headgate does) tells what
there is so far, on standard output only.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			b, err := c.batch(ctx, args[0])
			switch {
			case err != nil:
				return err
			case !b.ended() && out != "":
				return fmt.Errorf("batch %s is %s: it has files when it has ended", b.ID, b.line(0))
			case !b.ended():
				return c.soFar(ctx, b, cmd.OutOrStdout())
			case out != "":
				return c.results(ctx, b, out, newProgress(cmd.ErrOrStderr()))
			}
			for _, id := range []string{b.Output, b.Error} {
				if id == "" {
					continue
				}
				if err := c.copyTo(ctx, id, cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file to write to")
	return cmd
}

// soFar writes the lines of a batch that runs.
func (c *batchClient) soFar(ctx context.Context, b *batchObject, out io.Writer) error {
	for _, part := range []string{"/output", "/errors"} {
		res, err := c.do(ctx, http.MethodGet, "/batches/"+url.PathEscape(b.ID)+part, "", 0, nil)
		var api *apiError
		if errors.As(err, &api) && api.status == http.StatusNotFound {
			return fmt.Errorf("batch %s is %s, and this server has no results until a batch has ended", b.ID, b.Status)
		}
		if err != nil {
			return err
		}
		_, err = io.Copy(out, res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.say, "batch %s goes on: %s\n", b.ID, b.line(0))
	return nil
}
