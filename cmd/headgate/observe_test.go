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
		if r.URL.Path != "/api/pools/main/observe" {
			http.Error(w, `no pool "other"`, http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "as %s\n", r.URL.Query().Get("format"))
	}))
	defer s.Close()
	for _, c := range []struct{ pool, output, want, wrong string }{
		{"main", "table", "as text\n", ""},
		{"main", "json", "as json\n", ""},
		{"main", "xml", "", `--output is "xml", must be table or json`},
		{"other", "json", "", `no report: status 404: no pool "other"`},
	} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"observe", "report", "--admin", s.URL + "/", "--pool", c.pool, "--output", c.output})
		wrong := ""
		if err := cmd.Execute(); err != nil {
			wrong = err.Error()
		}
		if out.String() != c.want || wrong != c.wrong {
			t.Errorf("%s %s: %q, %s", c.pool, c.output, out.String(), wrong)
		}
	}
}
