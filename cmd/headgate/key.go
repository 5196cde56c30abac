package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"headgate/config"
	"headgate/identity"
)

func keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Make API keys, and list, rotate and revoke those of a file", Args: cobra.NoArgs,
		Long: `Make a random API key. The key is printed once and stored nowhere; the hash goes
into the configuration, under keys or admin.keys.

The commands below do that in a file that keys_file names, which serve reads again
when it changes. They write it whole and without its comments, one at a time; who reads it finds the
old or the new one. A new file has mode 0600; one that is there keeps its mode and,
where root runs this, its owner.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, hash, err := identity.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			return printKey(cmd.OutOrStdout(), key, hash)
		},
	}
	cmd.AddCommand(keyCreateCommand(), keyListCommand(), keyRotateCommand(), keyRevokeCommand())
	return cmd
}

func printKey(w io.Writer, key identity.Secret, hash string) error {
	_, err := fmt.Fprintf(w, "key:  %s\nhash: %s\n", key.Reveal(), hash)
	return err
}

// keysFlag adds the flag that all of them need.
func keysFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "file", "f", "", "file of keys, as keys_file names it")
	_ = cmd.MarkFlagRequired("file") // it is there
}

func keyCreateCommand() *cobra.Command {
	var file, expires string
	var k identity.Key
	cmd := &cobra.Command{
		Use: "create NAME -f FILE --tenant NAME --class NAME...", Short: "Make a key and write its hash into a file", Args: cobra.ExactArgs(1),
		Long: `Make a random API key, print it once, and write its hash and what it may do into
a file, which is made if there is none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			k.Name = args[0]
			var err error
			if k.Expires, err = expiry("--expires", expires, time.Now()); err != nil {
				return err
			}
			key, hash, err := identity.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			k.Hash = hash
			err = changeKeys(file, true, func(f *config.KeysFile) error {
				f.Keys = append(f.Keys, k)
				return nil
			})
			if err != nil {
				return fmt.Errorf("no key is made: %w", err)
			}
			return printKey(cmd.OutOrStdout(), key, hash)
		},
	}
	keysFlag(cmd, &file)
	f := cmd.Flags()
	f.StringVar(&k.Tenant, "tenant", "", "who is billed, and with whom the key shares fairly")
	f.StringArrayVar(&k.Classes, "class", nil, "a class that it may use; several times for several, the first is its default")
	f.BoolVar(&k.Header, "header", false, "requests may choose a class by a Headgate-Class header")
	f.BoolVar(&k.ServiceTier, "service-tier", false, "requests may choose a class by OpenAI's service_tier")
	f.BoolVar(&k.SLOHeaders, "slo-headers", false, "requests may have limits of their own by x-slo-ttft-ms and x-slo-tpot-ms")
	f.StringArrayVar(&k.Models.Allow, "model", nil, "a model that it may use, or the beginning of names and a *; several times for several, without any it may use all")
	f.StringArrayVar(&k.Models.Deny, "deny-model", nil, "a model that it may not use, in the same form")
	f.StringVar(&expires, "expires", "", "when it ends: a time such as 2027-01-31T00:00:00Z, or after so long, such as 720h; never without it")
	return cmd
}

// expiry is a time as a file has it, of a time or a duration from now; "" is none.
func expiry(flag, text string, now time.Time) (string, error) {
	if text == "" {
		return "", nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return now.Add(d).UTC().Format(time.RFC3339), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !t.After(now) {
		return "", fmt.Errorf("%s is %.40q, must be a time to come such as 2027-01-31T00:00:00Z, or a duration such as 720h", flag, text)
	}
	return t.UTC().Format(time.RFC3339), nil
}

// keyView is a key as list shows it: its hash tells two apart and is no secret, but
// nobody needs to read it.
type keyView struct {
	Name    string   `json:"name"`
	Tenant  string   `json:"tenant"`
	Classes []string `json:"classes"`
	State   string   `json:"state"` // active, expired, or rotated: the old key is taken too
	Expires string   `json:"expires,omitempty"`
	Old     string   `json:"old_until,omitempty"`
	Hash    string   `json:"hash"`
}

func keyListCommand() *cobra.Command {
	var file, output string
	cmd := &cobra.Command{
		Use: "list -f FILE", Short: "List the keys of a file", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			f, err := loadKeys(file)
			if err != nil {
				return err
			}
			return listKeys(cmd.OutOrStdout(), f, output, time.Now())
		},
	}
	keysFlag(cmd, &file)
	cmd.Flags().StringVar(&output, "output", "table", "table or json")
	return cmd
}

// over tells whether a time of a file has come.
func over(text string, now time.Time) bool {
	t, err := time.Parse(time.RFC3339, text)
	return err == nil && !now.Before(t)
}

func listKeys(w io.Writer, f *config.KeysFile, output string, now time.Time) error {
	views := []keyView{}
	for _, k := range f.Keys {
		v := keyView{Name: k.Name, Tenant: k.Tenant, Classes: k.Classes, State: "active", Expires: k.Expires, Hash: k.Hash}
		if k.Old != nil && !over(k.Old.Until, now) {
			v.State, v.Old = "rotated", k.Old.Until
		}
		if over(k.Expires, now) {
			v.State = "expired"
		}
		views = append(views, v)
	}
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(views)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tTENANT\tCLASSES\tSTATE\tEXPIRES\tOLD UNTIL")
	for _, v := range views {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", v.Name, v.Tenant, strings.Join(v.Classes, ", "), v.State, orDash(v.Expires), orDash(v.Old))
	}
	return t.Flush()
}

func keyRotateCommand() *cobra.Command {
	var file, expires string
	var overlap time.Duration
	cmd := &cobra.Command{
		Use: "rotate NAME -f FILE", Short: "Replace a key, with a time in which both are taken", Args: cobra.ExactArgs(1), ValidArgsFunction: keysOf,
		Long: `Make a new key for a name and print it once. The one that it had is taken for
--overlap longer, in which its users change over. What the key may do stays, and so
does when it ends unless --expires says otherwise.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			now := time.Now()
			end, err := expiry("--expires", expires, now)
			if err == nil && overlap < 0 {
				err = fmt.Errorf("--overlap is %v, must be at least 0s", overlap)
			}
			if err != nil {
				return err
			}
			key, hash, err := identity.NewKey(rand.Reader)
			if err != nil {
				return err
			}
			err = changeKey(file, args[0], func(k *identity.Key) error {
				if k.Old != nil && !over(k.Old.Until, now) {
					return fmt.Errorf("key %s was rotated before, and its old key is taken until %s: revoke that first, with --old", k.Name, k.Old.Until)
				}
				if k.Old = nil; overlap > 0 {
					k.Old = &identity.OldKey{Hash: k.Hash, Until: now.Add(overlap).UTC().Format(time.RFC3339)}
				}
				if k.Hash = hash; end != "" {
					k.Expires = end
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("the key is as it was: %w", err)
			}
			return printKey(cmd.OutOrStdout(), key, hash)
		},
	}
	keysFlag(cmd, &file)
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "for how long the old key is taken; 0 ends it at once")
	cmd.Flags().StringVar(&expires, "expires", "", "when the new key ends: a time such as 2027-01-31T00:00:00Z, or after so long, such as 720h")
	return cmd
}

func keyRevokeCommand() *cobra.Command {
	var file string
	var old bool
	cmd := &cobra.Command{
		Use: "revoke NAME -f FILE", Short: "Remove a key from a file", Args: cobra.ExactArgs(1), ValidArgsFunction: keysOf,
		Long: `Remove a key from a file, or with --old only the one that it has replaced. Calls
that it has let in run to their end. Its batches wait for the key to come back, and
lapse: cancel them, or create a key of the same name.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if old {
				err = changeKey(file, args[0], func(k *identity.Key) error {
					if k.Old == nil {
						return fmt.Errorf("key %s has no old key", k.Name)
					}
					k.Old = nil
					return nil
				})
			} else {
				err = changeKeys(file, false, func(f *config.KeysFile) error {
					i, err := findKey(f, args[0])
					if err == nil {
						f.Keys = slices.Delete(f.Keys, i, i+1)
					}
					return err
				})
			}
			if err != nil {
				return fmt.Errorf("no key is revoked: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "key %s is revoked\n", args[0])
			return err
		},
	}
	keysFlag(cmd, &file)
	cmd.Flags().BoolVar(&old, "old", false, "only the key that this one has replaced")
	return cmd
}

func findKey(f *config.KeysFile, name string) (int, error) {
	i := slices.IndexFunc(f.Keys, func(k identity.Key) bool { return k.Name == name })
	if i < 0 {
		return 0, hint(fmt.Errorf("there is no key %.64q in the file", name), "headgate key list shows those that there are")
	}
	return i, nil
}

// changeKey changes one key of a file.
func changeKey(file, name string, change func(*identity.Key) error) error {
	return changeKeys(file, false, func(f *config.KeysFile) error {
		i, err := findKey(f, name)
		if err != nil {
			return err
		}
		return change(&f.Keys[i])
	})
}

// loadKeys reads a file of keys; the error names the first of its problems.
func loadKeys(file string) (*config.KeysFile, error) {
	f, problems, err := config.LoadKeys(file)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = hint(err, "headgate key create makes the file with a first key")
		}
		return nil, err
	}
	if f == nil {
		return nil, errors.New(problems[0].String())
	}
	return f, nil
}

// changeKeys changes a file of keys while nobody else does: what is read is what is
// written back, and a reader finds one or the other. A link to the file stays one.
func changeKeys(file string, create bool, change func(*config.KeysFile) error) error {
	if real, err := filepath.EvalSymlinks(file); err == nil {
		file = real
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // which lets go of the lock
	if err := lock(dir); err != nil {
		return fmt.Errorf("lock folder %s: %w", dir.Name(), err)
	}
	was, err := os.Stat(file)
	if err != nil {
		was = nil // which loadKeys tells of
	}
	f, err := loadKeys(file)
	if create && errors.Is(err, fs.ErrNotExist) {
		f, err = &config.KeysFile{}, nil
	}
	if err == nil {
		err = change(f)
	}
	if err != nil {
		return err
	}
	var wrong error
	identity.ValidateKeys(f.Keys, func(path string, value any, allowed string) {
		if wrong == nil {
			if _, field, ok := strings.Cut(path, "]."); ok {
				path = field
			}
			wrong = fmt.Errorf("%s: value %v: allowed %s", path, value, allowed)
		}
	})
	if wrong != nil {
		return wrong
	}
	text, err := f.Marshal()
	if err != nil {
		return err
	}
	return replaceFile(file, text, was)
}
