package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"headgate/certs/certstest"
)

// TestWaysOut: of the errors that users meet most each says what went wrong, with the value,
// and on a line of its own what to do.
func TestWaysOut(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path(name)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, hash := newTestKey(t)
	r := newReloadRig(t, two("odd", 64))
	open := "http://" + r.s.admin.Addr().String()
	keyed := newReloadRig(t, strings.Replace(two("even", 64), "admin: {listen: 127.0.0.1:0}", fmt.Sprintf("admin: {listen: 127.0.0.1:0, keys: [{name: ops, hash: %q, role: read}]}", hash), 1))
	locked := "http://" + keyed.s.admin.Addr().String()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.TLS = nil
	secure.Config.ErrorLog = quiet
	secure.StartTLS()
	defer secure.Close()
	stranger := certstest.New(t)
	write("ca.pem", string(stranger.PEM))

	good := strings.ReplaceAll(two("odd", 64), "ENGINE", r.engine)
	at := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	write("good.yaml", good)
	write("port.yaml", at("listen: 127.0.0.1:0", "listen: "+taken.Addr().String()))
	write("admin.yaml", at("admin: {listen: 127.0.0.1:0}", "admin: {listen: "+taken.Addr().String()+"}"))
	write("far.yaml", at("listen: 127.0.0.1:0", "listen: 192.0.2.1:80"))
	write("journal.yaml", good+"journal: {file: "+path("none")+"/journal.jsonl}\n")
	write("tls.yaml", good+"tls: {cert: "+path("none.pem")+", key: "+path("none.pem")+"}\n")
	write("batch.yaml", good+"batch: {dir: "+path("good.yaml")+"}\n")
	write("store.yaml", good+"batch: {dir: "+path("b")+", postgres_env: HEADGATE_TEST_DSN}\n")
	t.Setenv("HEADGATE_TEST_DSN", "postgres://u:secret@"+gone(t)+"/d")
	t.Setenv("OPENAI_API_KEY", "")

	away := "http://" + gone(t)
	for _, c := range []struct {
		args string // DIR is the folder
		key  string // of operators
		says string // what went wrong
		try  string // what to do
	}{
		{args: "sevre", says: `unknown command "sevre"`, try: "headgate --help lists the commands"},
		{args: "serve --confg x", says: "unknown flag: --confg", try: "headgate serve --help"},
		{args: "validate", says: `"config" not set`, try: "headgate validate --help"},
		{args: "config diff one.yaml", says: "accepts 2 arg(s), received 1", try: "headgate config diff --help"},
		{args: "doctor --timeout 5", says: `invalid argument "5" for "--timeout"`, try: "a number with its unit, such as 500ms, 30s"},
		{args: "limits --others many", says: `invalid argument "many" for "--others"`, try: "write a number"},
		{args: "serve -c DIR/none.yaml", says: "none.yaml: no such file", try: "serve --demo needs none"},
		{args: "serve -c DIR", says: "is a directory", try: "name a file"},
		{args: "serve -c DIR/port.yaml", says: "address already in use", try: "perhaps a gateway that runs already"},
		{args: "serve -c DIR/admin.yaml", says: "admin.listen: ", try: "give another by admin.listen or --admin"},
		{args: "serve -c DIR/far.yaml", says: "cannot assign requested address", try: "an address of this machine"},
		{args: "serve -c DIR/journal.yaml", says: "no such file", try: "mkdir -p"},
		{args: "serve -c DIR/tls.yaml", says: "none.pem: no such file", try: "name one that is there"},
		{args: "serve -c DIR/batch.yaml", says: "not a directory", try: "name a folder"},
		{args: "serve -c DIR/store.yaml", says: "connection refused", try: "start PostgreSQL"},
		{args: "engine --listen " + taken.Addr().String(), says: "address already in use", try: "port 0"},
		{args: "limits --admin " + away, says: "connection refused", try: "start headgate serve, or name the admin listener"},
		{args: "limits --admin localhost:9090", says: `--admin is "localhost:9090"`, try: ""},
		{args: "limits --admin " + locked, says: "status 401", try: "set HEADGATE_ADMIN_KEY"},
		{args: "limits --admin " + locked, key: adminSecret, says: "not known here", try: "headgate key makes one"},
		{args: "limits --admin " + secure.URL, says: "certificate", try: "--cacert"},
		{args: "limits --cacert DIR/none.pem", says: "none.pem: no such file", try: "name one that is there"},
		{args: "limits --admin " + strings.Replace(secure.URL, "https", "http", 1), says: "status 400", try: "https://"},
		{args: "limits --admin " + strings.Replace(open, "http", "https", 1), says: "http: server gave HTTP response", try: "http://"},
		{args: "limits --admin http://" + r.s.clients.Addr().String(), says: "status 404", try: "not the one for clients"},
		{args: "grants --admin " + open, says: "the process is of no fleet", try: "a replica or a controller"},
		{args: "plan --pool other --admin " + open, says: `pool "other" does not re-plan`, try: "docs/replan.md"},
		{args: "observe report --pool other --admin " + open, says: `no pool "other": there are main`, try: ""},
		{args: "top --once --pool other --admin " + open, says: `no pool "other"`, try: "the gateway has main"},
		{args: "top --admin " + open, says: "have to be a terminal's", try: "headgate top --once"},
		{args: "key list -f DIR/none.yaml", says: "no such file", try: "headgate key create"},
		{args: "key revoke eve -f DIR/keys.yaml", says: `no key "eve"`, try: "headgate key list"},
		{args: "occupancy DIR/none.jsonl", says: "no such file", try: "name one that is there"},
		{args: "probe --kind vllm --url " + away, says: "connection refused", try: "start what should"},
		{args: "batch list --base-url " + r.base, says: "404", try: "--base-url ends with /v1"},
	} {
		if c.args == "key revoke eve -f DIR/keys.yaml" {
			if _, err := command("key", "create", "alice", "-f", path("keys.yaml"), "--tenant", "a", "--class", "odd"); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv(envAdminKey, c.key)
		cmd := root()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(strings.Fields(strings.ReplaceAll(c.args, "DIR", dir)))
		var said bytes.Buffer
		err := execute(t.Context(), cmd)
		report(&said, err)
		what, do, _ := strings.Cut(said.String(), "\n  try: ")
		if err == nil || !strings.Contains(what, c.says) || !strings.Contains(do, c.try) || c.try == "" && do != "" {
			t.Errorf("%s: %v\n%s\nwant %q, and %q", c.args, err, said.String(), c.says, c.try)
		}
		if strings.Contains(said.String(), "secret") {
			t.Errorf("%s: a password is printed: %s", c.args, said.String())
		}
	}
}

// TestAdminTLS: commands speak to an admin listener that asks for a certificate, by flags,
// and take no proxy from the environment.
func TestAdminTLS(t *testing.T) {
	a := certstest.New(t)
	dir := t.TempDir()
	write := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"gateway", "ann"} {
		cert, key := a.Pair(name)
		write(name+".pem", cert)
		write(name+".key", key)
	}
	write("ca.pem", a.PEM)
	r := newReloadRig(t, strings.Replace(two("odd", 64), "admin: {listen: 127.0.0.1:0}",
		strings.ReplaceAll("admin: {listen: 127.0.0.1:0, tls: {cert: DIR/gateway.pem, key: DIR/gateway.key, client_ca: DIR/ca.pem, client_auth: require}}", "DIR", dir), 1))
	files := []string{"--admin", "https://" + r.s.admin.Addr().String(), "--cacert", filepath.Join(dir, "ca.pem"), "--cert", filepath.Join(dir, "ann.pem"), "--key-file", filepath.Join(dir, "ann.key")}
	for _, c := range [][]string{{"limits"}, {"top", "--once"}, {"observe", "report"}, {"doctor"}} {
		if out, err := command(append(c, files...)...); err != nil || out == "" {
			t.Errorf("%v: %v, %s", c, err, out)
		}
	}
	_, err := command(append([]string{"limits"}, files[:4]...)...)
	if do := wayOut(err); err == nil || !strings.Contains(do, "--cert and --key-file") {
		t.Errorf("without a certificate: %v; %s", err, do)
	}
	client, err := (&adminClient{url: "http://10.0.0.5:9090"}).client()
	if err != nil || client.Transport.(*http.Transport).Proxy != nil {
		t.Errorf("a proxy of the environment's is asked: %v", err)
	}
}
