package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/certs/certstest"
	"headgate/doctor"
	"headgate/e2e/need"
	"headgate/pagetest"
	"headgate/simengine"
	"headgate/simengine/vllmapi"
)

// What must be in nothing that doctor prints.
const (
	engineSecret   = "sk-the-engine's-own"
	databaseSecret = "the-database's-password"
	adminSecret    = "hg_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
)

// ward is a set-up in which all is well, for a test to spoil.
type ward struct {
	t         *testing.T
	dir       string
	authority *certstest.Authority
	vllm      string // an engine that tells all it can, host:port
	plain     string // one that tells what vLLM tells otherwise, without prefix caching and priorities
	collector *httptest.Server

	text string            // of the configuration
	env  map[string]string // of doctor
	args []string
}

// newWard starts what there is in a set-up.
func newWard(t *testing.T) *ward {
	w := &ward{t: t, dir: t.TempDir(), authority: certstest.New(t)}
	engine := func(dev bool, change func(*simengine.Config)) string {
		c := simengine.DefaultConfig()
		c.PrefixCaching = true
		change(&c)
		_, at, closeEngine, err := startBenchEngine(t.Context(), vllmapi.Config{Engine: c, Version: "test", DevMode: dev}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(closeEngine)
		return at.String()
	}
	w.vllm = engine(true, func(*simengine.Config) {})
	w.plain = engine(true, func(c *simengine.Config) { c.PrefixCaching, c.Policy = false, simengine.FCFS })
	w.collector = httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(w.collector.Close)
	return w
}

// healthy is a configuration of everything that doctor looks at and a test can have.
const healthy = `listen: 127.0.0.1:0
tls: {cert: DIR/cert, key: DIR/key}
admin: {listen: "127.0.0.1:0"}
limits: {max_connections: 64, max_tenants: 100, balance_file: DIR/balances}
journal: {file: DIR/journal.jsonl}
estimates: {file: DIR/estimates.json}
audit: {file: DIR/audit.jsonl, source: here, rotate_bytes: 64KiB}
batch: {dir: DIR/batch, max_file_bytes: 1MiB}
otlp: {endpoint: COLLECTOR}
keys_file: DIR/keys.yaml
pools:
  - name: main
    models: [headgate-simulated-m1]
    aliases: [{name: chat, model: headgate-simulated-m1}]
    engines: [{name: gpu0, kind: vllm, url: "http://VLLM", slots: 4, kv_tokens: 5120, block_size: 16, max_context: 4096, priority: true, prefix_caching: true}]
    classes:
      - {name: interactive, floor: {slots: 3}}
      - {name: batch, floor: {slots: 1}}
`

func (w *ward) path(name string) string { return filepath.Join(w.dir, name) }

func (w *ward) write(name string, b []byte, mode os.FileMode) {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), b, mode); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chmod(w.path(name), mode); err != nil {
		w.t.Fatal(err)
	}
}

// fresh is the ward as it is well.
func (w *ward) fresh(t *testing.T) *ward {
	f := *w
	f.t, f.dir, f.text, f.env = t, t.TempDir(), healthy, map[string]string{}
	cert, key := w.authority.Pair("gateway")
	f.write("cert", cert, 0o644)
	f.write("key", key, 0o600)
	f.keys("")
	return &f
}

func (w *ward) keys(expires string) {
	_, hash := newTestKey(w.t)
	w.write("keys.yaml", fmt.Appendf(nil, "keys: [{name: alice, tenant: a, hash: %q, classes: [interactive]%s}, {name: bob, tenant: b, hash: %q, classes: [batch]}]\n", hash, expires, "sha256:"+strings.Repeat("0", 64)), 0o600)
}

// change replaces a part of the configuration, which has to be there.
func (w *ward) change(old, new string) {
	w.t.Helper()
	if !strings.Contains(w.text, old) {
		w.t.Fatalf("the configuration has no %q", old)
	}
	w.text = strings.Replace(w.text, old, new, 1)
}

// before is a server before the engine, that may do otherwise.
func (w *ward) before(handle func(rw http.ResponseWriter, r *http.Request, next http.Handler)) string {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.vllm})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { handle(rw, r, p) }))
	w.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// instead is a server before the engine that answers one path itself.
func (w *ward) instead(path string, status int, body string) string {
	return w.before(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path != path {
			next.ServeHTTP(rw, r)
			return
		}
		rw.WriteHeader(status)
		_, _ = io.WriteString(rw, body)
	})
}

// doctor runs it and returns what it finds, and its exit status.
func (w *ward) doctor() (report doctor.Report, code int) {
	w.t.Helper()
	text := strings.NewReplacer("DIR", w.dir, "COLLECTOR", w.collector.URL, "VLLM", w.vllm).Replace(w.text)
	if _, err := os.Stat(w.path("hg.yaml")); err != nil {
		w.write("hg.yaml", []byte(text), 0o600)
	}
	for name, value := range w.env {
		w.t.Setenv(name, value)
	}
	args := append([]string{"doctor", "--json", "--timeout", "20s", "-c", w.path("hg.yaml")}, w.args...)
	out, err := command(args...)
	if err != nil {
		code = report2(err)
	}
	for _, secret := range []string{engineSecret, databaseSecret, adminSecret} {
		if strings.Contains(out, secret) {
			w.t.Errorf("a secret is printed: %s", out)
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	for _, f := range report.Findings {
		if f.What == "" || f.Evidence == "" || f.Do == "" || f.Of == "" {
			w.t.Errorf("a finding that does not say all: %+v", f)
		}
	}
	return report, code
}

// report2 is the exit status of an error that says nothing else.
func report2(err error) int {
	var said bytes.Buffer
	return report(&said, err)
}

var quiet = log.New(io.Discard, "", 0)

// gone is an address at which nobody listens.
func gone(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDoctor: nothing is found where all is well, and of each set-up that was spoiled that
// and nothing else.
func TestDoctor(t *testing.T) {
	w := newWard(t)
	hour := func(from, to time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to) }
	}
	certificate := func(change func(*x509.Certificate)) func(w *ward) {
		return func(w *ward) {
			cert, key := w.authority.Changed("gateway", change)
			w.write("cert", cert, 0o644)
			w.write("key", key, 0o600)
		}
	}
	engine := func(old, new string) func(w *ward) { return func(w *ward) { w.change(old, new) } }
	for _, c := range []struct {
		name  string
		spoil func(w *ward)
		want  string // the ids of what is found, in order
	}{
		{"well", func(*ward) {}, ""},

		{"no file", func(w *ward) { w.args = []string{"-c", w.path("none.yaml")} }, "config_unreadable"},
		{"unknown key", engine("limits: {max_c", "limits: {drain: 1m, max_c"), "config_problem"},
		{"a class without a floor", engine("{name: batch, floor: {slots: 1}}", "{name: batch}"), "config_warning"},
		{"a key that is not set", engine("slots: 4,", "slots: 4, api_key_env: HEADGATE_TEST_UNSET,"), "config_unset"},
		{"a configuration that others write", func(w *ward) {
			w.doctor()
			if err := os.Chmod(w.path("hg.yaml"), 0o666); err != nil {
				w.t.Fatal(err)
			}
		}, "config_open"},
		{"keys that others write", func(w *ward) {
			if err := os.Chmod(w.path("keys.yaml"), 0o622); err != nil {
				w.t.Fatal(err)
			}
		}, "config_open"},
		{"keys that a group writes", func(w *ward) {
			if err := os.Chmod(w.path("keys.yaml"), 0o660); err != nil {
				w.t.Fatal(err)
			}
		}, "config_group"},
		{"a key that is over", func(w *ward) { w.keys(`, expires: "2020-01-01T00:00:00Z"`) }, "key_expired"},
		{"keys that are all over", func(w *ward) {
			w.keys(`, expires: "2020-01-01T00:00:00Z"`)
			w.change("keys_file: DIR/keys.yaml", fmt.Sprintf("keys: [{name: eve, tenant: e, hash: \"sha256:%s\", classes: [batch], expires: \"2020-01-01T00:00:00Z\"}]", strings.Repeat("1", 64)))
		}, "keys_none"},
		{"an issuer that is away", func(w *ward) {
			w.text += fmt.Sprintf("issuers: [{name: sso, issuer: \"http://%s\", audiences: [headgate]}]\nrules: [{name: staff, from: [sso], tenant: a, classes: [interactive]}]\n", gone(w.t))
		}, "issuer_away"},

		{"a certificate that is over", certificate(hour(-2*time.Hour, -time.Hour)), "cert_expired"},
		{"one that is not yet", certificate(hour(time.Hour, 2*time.Hour)), "cert_future"},
		{"one that ends soon", certificate(hour(-89*24*time.Hour, 24*time.Hour)), "cert_expires"},
		{"one without a name", certificate(func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil }), "cert_name"},
		{"another's key", func(w *ward) {
			_, key := w.authority.Pair("another")
			w.write("key", key, 0o600)
		}, "cert_unusable"},
		{"a chain with a gap", func(w *ward) {
			cert, key := w.authority.Pair("gateway")
			w.write("cert", append(cert, certstest.New(w.t).PEM...), 0o644)
			w.write("key", key, 0o600)
		}, "cert_chain"},
		{"a key that others read", func(w *ward) {
			if err := os.Chmod(w.path("key"), 0o644); err != nil {
				w.t.Fatal(err)
			}
		}, "secret_open"},

		{"no engine", func(w *ward) { w.change("VLLM", gone(w.t)) }, "engine_away"},
		{"https by a stranger", func(w *ward) {
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.TLS = &tls.Config{Certificates: w.authority.Certificate("engine")}
			s.Config.ErrorLog = quiet
			s.StartTLS()
			w.t.Cleanup(s.Close)
			w.change("http://VLLM", s.URL)
		}, "engine_tls"},
		{"an engine with a key", func(w *ward) {
			w.change("VLLM", w.before(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Header.Get("Authorization") != "Bearer right" {
					http.Error(rw, "no", http.StatusUnauthorized)
					return
				}
				next.ServeHTTP(rw, r)
			}))
			w.change("slots: 4,", "slots: 4, api_key_env: HEADGATE_TEST_KEY,")
			w.env["HEADGATE_TEST_KEY"] = engineSecret
		}, "engine_key"},
		{"a llama-server with a key", func(w *ward) {
			w.change("VLLM", w.before(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				switch r.URL.Path {
				case "/health", "/v1/models", "/models":
					next.ServeHTTP(rw, r)
				default:
					http.Error(rw, `{"error":{"code":401,"message":"Invalid API Key","type":"authentication_error"}}`, http.StatusUnauthorized)
				}
			}))
			w.change("kind: vllm", "kind: llamacpp")
		}, "engine_key"},
		{"an engine that is dead", func(w *ward) { w.change("VLLM", w.instead("/health", http.StatusServiceUnavailable, "")) }, "engine_not_ready"},
		{"a page", func(w *ward) { w.change("VLLM", w.instead("/v1/models", http.StatusOK, "<html>")) }, "engine_answers"},
		{"no model", func(w *ward) { w.change("VLLM", w.instead("/v1/models", http.StatusOK, `{"data": []}`)) }, "engine_models model_unknown alias_unknown"},
		{"KV that nobody says", func(w *ward) {
			w.change("VLLM", w.instead("/metrics", http.StatusOK, "vllm:num_requests_running 0\n"))
			w.change("kv_tokens: 5120, ", "")
		}, "engine_metrics engine_kv_unknown"},
		{"another kind", engine("kind: vllm", "kind: llamacpp"), "engine_kind"},
		{"a kind that tells less", engine("kind: vllm", "kind: openai"), "engine_kind_plain"},
		{"more slots", engine("slots: 4,", "slots: 5,"), "engine_slots_more"},
		{"fewer slots", func(w *ward) {
			w.change("slots: 4,", "slots: 3,")
			w.change("floor: {slots: 3}", "floor: {slots: 2}")
		}, "engine_slots_fewer"},
		{"more KV", engine("kv_tokens: 5120", "kv_tokens: 51200"), "engine_kv_more"},
		{"less KV", engine("kv_tokens: 5120", "kv_tokens: 4096"), "engine_kv_fewer"},
		{"a longer context", engine("max_context: 4096", "max_context: 5000"), "engine_context"},
		{"another block", engine("block_size: 16", "block_size: 8"), "engine_block"},
		{"no prefixes and no priorities", engine("VLLM", w.plain), "engine_prefix engine_priority"},
		{"slots that nobody says", func(w *ward) {
			w.change("VLLM", w.instead("/server_info", http.StatusNotFound, "")) // as without its development mode
			w.change("slots: 4, ", "")
		}, "config_warning config_warning config_warning engine_slots_unknown"},
		{"no metrics", func(w *ward) {
			w.change("VLLM", w.instead("/metrics", http.StatusNotFound, ""))
			w.change(", prefix_caching: true", "")
		}, "engine_metrics"},
		{"a clock that is an hour ahead", func(w *ward) {
			w.change("VLLM", w.before(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
				rw.Header().Set("Date", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
				next.ServeHTTP(&keepsDate{rw}, r)
			}))
		}, "engine_clock"},
		{"another engine's profile", func(w *ward) {
			p := profileOf("vllm", nil)
			b, err := json.Marshal(p)
			if err != nil {
				w.t.Fatal(err)
			}
			w.write("profile.json", b, 0o600)
			w.change("slots: 4,", "slots: 4, profile: DIR/profile.json,")
		}, "engine_profile"},
		{"another model", engine("models: [headgate-simulated-m1]", "models: [qwen-32b]"), "model_unknown"},
		{"an alias of nothing", engine("model: headgate-simulated-m1}]", "model: qwen-32b}]"), "alias_unknown"},
		{"floors that the engine can't have", func(w *ward) {
			w.change("slots: 4, kv_tokens: 5120, ", "")
			w.change("floor: {slots: 3}", "floor: {slots: 30}")
		}, "config_warning pool_fits"},

		{"no etcd", func(w *ward) {
			w.text += fmt.Sprintf("control: {store: etcd, endpoints: [\"http://%s\"], replica: a}\n", gone(w.t))
		}, "config_warning store_away"},
		{"a database that is none", func(w *ward) {
			if err := os.Mkdir(w.path("batch"), 0o700); err != nil {
				w.t.Fatal(err)
			}
			w.write("batch/batch.db", bytes.Repeat([]byte("this is something else\n"), 500), 0o600)
		}, "batch_store"},
		{"a database from tomorrow", func(w *ward) {
			if err := os.Mkdir(w.path("batch"), 0o700); err != nil {
				w.t.Fatal(err)
			}
			db, err := sql.Open("sqlite", w.path("batch/batch.db"))
			if err == nil {
				_, err = db.Exec("CREATE TABLE goose_db_version (version_id INTEGER); INSERT INTO goose_db_version VALUES (99)")
			}
			if err != nil {
				w.t.Fatal(err)
			}
			_ = db.Close()
		}, "batch_newer"},
		{"no PostgreSQL", func(w *ward) {
			w.change("batch: {dir: DIR/batch,", "batch: {dir: DIR/batch, postgres_env: HEADGATE_TEST_DSN,")
			w.env["HEADGATE_TEST_DSN"] = fmt.Sprintf("postgres://u:%s@%s/d", databaseSecret, gone(w.t))
		}, "batch_store"},
		{"no PostgreSQL for audit", func(w *ward) {
			w.change("audit: {file: DIR/audit.jsonl,", "audit: {postgres_env: HEADGATE_TEST_DSN,")
			w.env["HEADGATE_TEST_DSN"] = fmt.Sprintf("postgres://u:%s@%s/d", databaseSecret, gone(w.t))
		}, "audit_store"},
		{"no bucket", func(w *ward) {
			w.change("batch: {dir: DIR/batch,", fmt.Sprintf("batch: {dir: DIR/batch, bucket: \"s3://b?region=eu-central-1&endpoint=http://%s&use_path_style=true\",", gone(w.t)))
			for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": engineSecret, "AWS_MAX_ATTEMPTS": "1"} {
				w.env[name] = value
			}
		}, "batch_files"},

		{"a folder that is not there", engine("DIR/journal.jsonl", "DIR/none/journal.jsonl"), "file_unwritable"},
		{"a folder for a file", engine("DIR/estimates.json", "DIR"), "file_unwritable"},
		{"audit records that others read", func(w *ward) { w.write("audit.jsonl", nil, 0o644) }, "secret_open"},
		{"a small disk", func(w *ward) {
			w.change("DIR/batch", need.Disk(w.t, 2<<20))
			w.change("max_file_bytes: 1MiB", "max_file_bytes: 2MiB")
		}, "secret_open disk_low"},

		{"no collector", func(w *ward) { w.change("COLLECTOR", "http://"+gone(w.t)) }, "collector_away"},
		{"no logs", func(w *ward) {
			s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/logs" {
					http.NotFound(rw, r)
				}
			}))
			w.t.Cleanup(s.Close)
			w.change("COLLECTOR", s.URL)
		}, "collector_refuses"},

		{"a port that is taken", func(w *ward) { w.change("listen: 127.0.0.1:0", "listen: "+w.vllm) }, "listen_taken"},
		{"an address of another machine", engine("listen: 127.0.0.1:0", "listen: 192.0.2.1:8443"), "cert_name listen_denied"},
		{"an open admin listener", engine(`admin: {listen: "127.0.0.1:0"}`, `admin: {listen: "0.0.0.0:0", open: true}`), "admin_open"},
		{"operators' keys in the clear", func(w *ward) {
			_, hash := newTestKey(w.t)
			w.change(`admin: {listen: "127.0.0.1:0"}`, fmt.Sprintf(`admin: {listen: "0.0.0.0:0", keys: [{name: ops, hash: %q}]}`, hash))
		}, "admin_plain"},
		{"anybody from anywhere", func(w *ward) {
			w.change("listen: 127.0.0.1:0", "listen: 0.0.0.0:0")
			w.text += "anonymous: {classes: [interactive]}\n"
		}, "anonymous_open"},
		{"no gateway", func(w *ward) { w.args = []string{"--admin", "http://" + gone(w.t)} }, "admin_away"},
		{"a server that says nothing", func(w *ward) {
			l, err := net.Listen("tcp", "127.0.0.1:0") // and accepts in the kernel alone
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { _ = l.Close() })
			w.change("COLLECTOR", "http://"+l.Addr().String())
			w.args = []string{"--timeout", "5s"}
		}, "collector_away"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.fresh(t)
			c.spoil(w)
			r, code := w.doctor()
			var ids []string
			level := 0
			for _, f := range r.Findings {
				ids = append(ids, f.ID)
				if level = max(level, 1); f.Level == doctor.Error {
					level = 2
				}
			}
			if d := cmp.Diff(strings.Fields(c.want), ids); d != "" && len(c.want)+len(ids) > 0 || code != level {
				b, _ := json.MarshalIndent(r.Findings, "", " ")
				t.Errorf("exit status %d, want %d\n%s\n%s", code, level, d, b)
			}
		})
	}
}

// keepsDate is an answer of which the date is set.
type keepsDate struct{ http.ResponseWriter }

func (k *keepsDate) WriteHeader(status int) {
	k.Header()["Date"] = k.Header()["Date"][:1]
	k.ResponseWriter.WriteHeader(status)
}

// TestDoctorOfAGateway: by its admin listener it is asked for what it says itself, with a key
// that is right, and its own addresses are no others'.
func TestDoctorOfAGateway(t *testing.T) {
	r := newReloadRig(t, two("odd", 64))
	find := func(want string, env string, args ...string) {
		t.Helper()
		t.Setenv(envAdminKey, env)
		out, err := command(append([]string{"doctor", "--json"}, args...)...)
		var got doctor.Report
		if e := json.Unmarshal([]byte(out), &got); e != nil {
			t.Fatal(e, err, out)
		}
		var ids []string
		for _, f := range got.Findings {
			ids = append(ids, f.ID)
		}
		if strings.Join(ids, " ") != want || strings.Contains(out, adminSecret) {
			t.Errorf("found %v, want %s: %s", ids, want, out)
		}
	}
	admin := "http://" + r.s.admin.Addr().String()
	find("", "", "--admin", admin)
	// The file names the very addresses that the gateway has.
	at := strings.NewReplacer("admin: {listen: 127.0.0.1:0}", "admin: {listen: "+r.s.admin.Addr().String()+"}", "listen: 127.0.0.1:0", "listen: "+r.s.clients.Addr().String()).
		Replace(two("odd", 64))
	at = strings.Replace(at, "anonymous", "limits: {max_connections: 64}\nanonymous", 1)
	file := filepath.Join(t.TempDir(), "hg.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(at, "ENGINE", r.engine)), 0o600); err != nil {
		t.Fatal(err)
	}
	find("", "", "-c", file)
	// An operator's switch, and an engine that is gone from the file but not from the gateway.
	if err := drain(admin); err != nil {
		t.Fatal(err)
	}
	find("admin_not_ready", "", "--admin", admin)
	_, hash := newTestKey(t)
	r.reloaded(strings.Replace(two("odd", 64), "admin: {listen: 127.0.0.1:0}", fmt.Sprintf("admin: {listen: 127.0.0.1:0, keys: [{name: ops, hash: %q}]}", hash), 1))
	find("admin_key", adminSecret, "--admin", admin)
	find("admin_tls", "", "--admin", strings.Replace(admin, "http", "https", 1))
}

func drain(admin string) error {
	res, err := http.Post(admin+"/api/pools/main/drain", "application/json", strings.NewReader(`{"on": true}`))
	if err == nil {
		err = res.Body.Close()
	}
	return err
}

// TestDoctorLimits: what the system lets a process have is that of the process, so it is one
// of its own.
func TestDoctorLimits(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hg.yaml")
	text := strings.ReplaceAll(two("odd", 64), "ENGINE", gone(t))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `ulimit -n 256 && exec headgate doctor -c "$1"`, "sh", file)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=64MiB")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if e, ok := err.(*exec.ExitError); ok {
		exit = e
	}
	if exit == nil || exit.ExitCode() != 2 { // for its engine
		t.Errorf("%v", err)
	}
	for _, want := range []string{"[engine_away]", "[limit_files]\n  seen: max_connections is 8192, which takes 16896 files; a process of this user may open 256", "[limit_memory]", "GOMEMLIMIT is 64 MiB", "1 error, 2 warnings in "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestDoctorUsage: what it can't begin with is an error of its own.
func TestDoctorUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"doctor --timeout 0s", "--timeout is 0s"},
		{"doctor --admin localhost:9090", "must be a URL such as http://127.0.0.1:9090"},
		{"doctor --cert x", "give --cert and --key-file together"},
		{"doctor --cacert none.pem", "none.pem"},
		{"doctor --nonsense", "unknown flag"},
	} {
		_, err := command(strings.Fields(c.args)...)
		var said bytes.Buffer
		if code := report(&said, err); err == nil || code != 2 || !strings.Contains(said.String(), c.want) {
			t.Errorf("%s: status %d: %s", c.args, code, said.String())
		}
	}
	out, err := command("doctor", "--admin", "http://"+gone(t))
	if err == nil || !strings.Contains(out, "admin_away") {
		t.Error(out, err)
	}
}

// TestDoctorKinds: the page lists what can be found, and no more.
func TestDoctorKinds(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| finding | | what is wrong |\n|---|---|---|\n")
	seen := map[string]bool{}
	for _, k := range doctor.Kinds() {
		if seen[k.ID] {
			t.Errorf("two are %s", k.ID)
		}
		seen[k.ID] = true
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.ID, k.Level, k.What)
	}
	b.WriteString("\n")
	pagetest.Part{File: "../../docs/doctor.md", Begin: "<!-- findings: written by go test ./cmd/headgate -run TestDoctorKinds -rewrite -->\n"}.Keep(t, b.String(), *rewrite)
}
