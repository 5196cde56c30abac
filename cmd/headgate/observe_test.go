package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// The report is what the admin listener says, and what it refuses is said too.
func TestObserveReport(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch format := r.URL.Query().Get("format"); r.URL.Path {
		case "/api/pools/main/observe":
			fmt.Fprintf(w, "as %s\n", format)
		case "/api/observe":
			fmt.Fprintf(w, "all as %s\n", format)
		default:
			http.Error(w, `no pool "other"`, http.StatusNotFound)
		}
	}))
	defer s.Close()
	for _, c := range []struct{ pool, output, want, wrong string }{
		{"main", "table", "as text\n", ""},
		{"main", "json", "as json\n", ""},
		{"", "table", "all as text\n", ""},
		{"", "json", "all as json\n", ""},
		{"main", "xml", "", `--output is "xml", must be table or json`},
		{"other", "json", "", `no report: status 404: no pool "other"`},
	} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		args := []string{"observe", "report", "--admin", s.URL + "/", "--output", c.output}
		if c.pool != "" {
			args = append(args, "--pool", c.pool)
		}
		cmd.SetArgs(args)
		wrong := ""
		if err := cmd.Execute(); err != nil {
			wrong = err.Error()
		}
		if out.String() != c.want || wrong != c.wrong {
			t.Errorf("%s %s: %q, %s", c.pool, c.output, out.String(), wrong)
		}
	}
}
