package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"headgate/config"
	"headgate/identity"
)

// issuer is one that signs with one key, as its server shows it.
type issuer struct {
	url string
	key ed25519.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: private}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/openid-configuration" {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, i.url, i.url)
			return
		}
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k","x":%q}]}`, base64.RawURLEncoding.EncodeToString(public))
	}))
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

func (i *issuer) token(claims string) string {
	enc := base64.RawURLEncoding.EncodeToString
	text := enc([]byte(`{"alg":"EdDSA","kid":"k"}`)) + "." + enc([]byte(fmt.Sprintf(`{"iss":%q,"aud":"headgate","exp":%d,%s}`, i.url, time.Now().Add(time.Hour).Unix(), claims)))
	return text + "." + enc(ed25519.Sign(i.key, []byte(text)))
}

func newTestKey(t *testing.T) (key, hash string) {
	secret, hash, err := identity.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return secret.Reveal(), hash
}

// command runs headgate and returns what it prints, or its error.
func command(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root()
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// Keys of a file and tokens are credentials of a process that runs, change with their
// files, and a file with a problem changes nothing; and its admin listener asks for a
// key of its own, by which commands ask it.
func TestCallersOfAServer(t *testing.T) {
	i := newIssuer(t)
	file := filepath.Join(t.TempDir(), "keys.yaml")
	alice, hash := newTestKey(t)
	ops, opsHash := newTestKey(t)
	keys := fmt.Sprintf("keys: [{name: alice, tenant: a, hash: %q, classes: [odd]}]\n", hash)
	if err := os.WriteFile(file, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	text := func(models string) string {
		return fmt.Sprintf(`listen: 127.0.0.1:0
admin: {listen: 127.0.0.1:0, keys: [{name: ops, hash: %q}]}
keys_file: %s
issuers: [{name: sso, issuer: %q, audiences: [headgate]}]
rules: [{name: staff, from: [sso], claims: [{name: groups, any: [eng]}], tenant: "{org}", classes: [odd], models: {deny: [%s]}}]
pools:
  - name: main
    aliases: [{name: other-name, model: secret}]
    engines: [{name: sim, kind: vllm, url: "http://ENGINE", slots: 64, observe_every: 50ms}]
    classes: [{name: odd, floor: {slots: 1}}]
`, opsHash, file, i.url, models)
	}
	r := newReloadRig(t, text("x"))
	ask := func(credential, model string) (int, string) {
		t.Helper()
		req, err := http.NewRequest("POST", r.base+"/v1/completions", strings.NewReader(fmt.Sprintf(`{"model":%q,"max_tokens":1,"prompt":"x"}`, model)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+credential)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body)
	}
	expect := func(what, credential string, want int) {
		t.Helper()
		if status, body := ask(credential, demoModel); status != want {
			t.Errorf("%s: %d, want %d: %s", what, status, want, body)
		}
	}
	staff := i.token(`"sub":"u","groups":["eng"],"org":"acme"`)
	expect("a key of the file", alice, 200)
	expect("a token", staff, 200)
	expect("a token that no rule admits", i.token(`"sub":"u","groups":["hr"],"org":"acme"`), 403)
	expect("a token that was changed", strings.Replace(staff, ".", ".e30", 1), 401)
	expect("an operator's key", ops, 401)
	if status, body := ask(staff, "other-name"); status != 503 {
		t.Errorf("an alias of no model: %d %s", status, body)
	}

	// An alias of what is denied is denied.
	r.reloaded(text("secret"))
	if status, body := ask(staff, "other-name"); status != 404 || strings.Contains(body, "secret") {
		t.Errorf("an alias of a denied model: %d %s", status, body)
	}
	_, other := newTestKey(t)
	if err := os.WriteFile(file, []byte("keys: [{name: alice, tenant: a b, hash: "+alice+", classes: [odd]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.s.reread()
	expect("a file with a problem changes nothing", alice, 200)
	if log := r.wrote(); !strings.Contains(log, "keys[0].tenant") || strings.Contains(log, alice) {
		t.Errorf("the log:\n%s", log)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(keys, hash, other, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r.s.reread()
	expect("a key that was replaced", alice, 401)
	if log := r.wrote(); !strings.Contains(log, "keys_file[alice].hash") {
		t.Errorf("the log:\n%s", log)
	}

	// The admin listener, with and without a key.
	admin := "http://" + r.s.admin.Addr().String()
	for _, args := range [][]string{{"plan"}, {"observe", "report"}, {"grants"}, {"events"}, {"control", "forget", "x"}} {
		args = append(args, "--admin", admin)
		if _, err := command(args...); err == nil || !strings.Contains(err.Error(), "401") || !strings.Contains(wayOut(err), envAdminKey) {
			t.Errorf("%v without a key: %v", args, err)
		}
		if _, err := command(append(args, "--admin-key", ops)...); err != nil && !strings.Contains(err.Error(), "of no fleet") {
			t.Errorf("%v with one: %v", args, err)
		}
		t.Setenv(envAdminKey, ops)
		if _, err := command(args...); err != nil && !strings.Contains(err.Error(), "of no fleet") {
			t.Errorf("%v with one of the environment: %v", args, err)
		}
		t.Setenv(envAdminKey, "")
	}
}

// Who changes a file of keys does it alone, and as many fit as there may be.
func TestKeysAreChangedByOneAtATime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	err := changeKeys(file, true, func(f *config.KeysFile) error {
		for n := range identity.MaxKeys - 8 {
			f.Keys = append(f.Keys, identity.Key{
				Name: fmt.Sprint("k", n), Tenant: "tenant", Hash: fmt.Sprintf("sha256:%064x", n), Classes: []string{"interactive", "batch"}, Header: true,
				Models: identity.Models{Allow: []string{"llama-*"}}, Expires: "2099-01-31T00:00:00Z",
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			if _, err := command("key", "create", fmt.Sprint("new", n), "-f", file, "--tenant", "t", "--class", "c"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f, err := loadKeys(file)
	if err != nil || len(f.Keys) != identity.MaxKeys {
		t.Fatalf("%v, %d keys", err, len(f.Keys))
	}
	if _, err := command("key", "create", "more", "-f", file, "--tenant", "t", "--class", "c"); err == nil || !strings.Contains(err.Error(), "at most 1000 keys") {
		t.Errorf("one more: %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestKeysFileStaysWhose: a change of a file of keys leaves its mode as it was, and its owner
// where root changes it; a new one is for its owner alone.
func TestKeysFileStaysWhose(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	for _, c := range []struct {
		args []string
		mode os.FileMode // which it is given then
	}{
		{[]string{"create", "alice", "-f", file, "--tenant", "t", "--class", "c"}, 0o600},
		{[]string{"create", "bob", "-f", file, "--tenant", "t", "--class", "c"}, 0o640},
		{[]string{"rotate", "alice", "-f", file, "--overlap", "1h"}, 0o644},
		{[]string{"revoke", "bob", "-f", file}, 0o640},
	} {
		before, err := os.Stat(file)
		want := os.FileMode(0o600)
		if err == nil {
			want = before.Mode().Perm()
		}
		if _, err := command(append([]string{"key"}, c.args...)...); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if after.Mode().Perm() != want {
			t.Errorf("%v: mode %o, and before %o", c.args, after.Mode().Perm(), want)
		}
		if before != nil && os.Geteuid() == 0 {
			if a, b := owner(after), owner(before); a != b {
				t.Errorf("%v: it is %s's, and before %s's", c.args, a, b)
			}
		}
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(file, 65532, 65533); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func owner(info os.FileInfo) string {
	of := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", of.Uid, of.Gid)
}

// Where others reach the admin listener it asks for a key, or the operator has said that
// it does not; neither a flag nor a file that is read again is a way round.
func TestAdminIsNotExposed(t *testing.T) {
	base := `anonymous: {classes: [odd]}
pools: [{name: main, engines: [{name: sim, kind: vllm, url: "http://127.0.0.1:1", slots: 4}], classes: [{name: odd, floor: {slots: 1}}]}]
`
	_, hash := newTestKey(t)
	for admin, good := range map[string]bool{
		`{listen: "127.0.0.1:0"}`: true, `{listen: "[::1]:0"}`: true, `{listen: "localhost:0"}`: true, `{listen: "127.9.9.9:0"}`: true,
		`{listen: ":9090"}`: false, `{listen: "0.0.0.0:9090"}`: false, `{listen: "[::]:9090"}`: false, `{listen: "10.0.0.5:9090"}`: false, `{listen: "host:9090"}`: false,
		`{listen: ":9090", open: true}`: true, `{listen: ":9090", keys: [{name: a, hash: "` + hash + `"}]}`: true, `{open: true, keys: [{name: a, hash: "` + hash + `"}]}`: false,
	} {
		if c, problems := config.Parse("hg.yaml", []byte("admin: "+admin+"\n"+base)); (c != nil) != good {
			t.Errorf("%s: %v", admin, problems)
		}
	}
	file := filepath.Join(t.TempDir(), "hg.yaml")
	if err := os.WriteFile(file, []byte("listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\n"+base), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := command("serve", "-c", file, "--admin", "0.0.0.0:0"); err == nil || !strings.Contains(err.Error(), "admin.keys") {
		t.Errorf("a flag: %v", err)
	}

	old := parsed(t, "admin: {listen: \":9090\", keys: [{name: a, hash: \""+hash+"\"}]}\n"+base)
	next := parsed(t, base) // listens on the loopback, once it is restarted
	keepUnchangeable(old, next)
	if err := next.Admin.Exposed(next.Admin.Listen); err == nil {
		t.Error("a file without keys opens the listener that is in force")
	}
}
