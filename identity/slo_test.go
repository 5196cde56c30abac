package identity

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"headgate/wire"
)

func TestLimits(t *testing.T) {
	const ms = time.Millisecond
	free := Principal{SLOHeaders: true}
	bounded := Principal{SLOHeaders: true, SLOMin: SLOMin{TTFT: 200 * ms, TPOT: 12500 * time.Microsecond}}
	const number = ", milliseconds as a number such as 500 or 12.5"
	for _, tt := range []struct {
		name string
		p    Principal
		h    []string
		want string // the limits, or the message of a 400
	}{
		{"none", free, nil, "0s 0s"},
		{"both", free, []string{"x-slo-ttft-ms", "300", "x-slo-tpot-ms", "12.5"}, "300ms 12.5ms asked"},
		{"one", free, []string{"X-SLO-TTFT-MS", " 1000 "}, "1s 0s asked"},
		{"0 is the class's", bounded, []string{"x-slo-ttft-ms", "0", "x-slo-tpot-ms", "0.0"}, "0s 0s asked"},
		{"not rounded to none", free, []string{"x-slo-ttft-ms", "0.0000000001"}, "1ns 0s asked"},
		{"the most", free, []string{"x-slo-ttft-ms", "3600000"}, "1h0m0s 0s asked"},
		{"the least", bounded, []string{"x-slo-ttft-ms", "200", "x-slo-tpot-ms", "12.5"}, "200ms 12.5ms asked"},
		{"not permitted", Principal{}, []string{"x-slo-ttft-ms", "300"}, "0s 0s asked"},
		{"not permitted and not read", Principal{}, []string{"x-slo-tpot-ms", "soon"}, "0s 0s asked"},
		{"no number", free, []string{"x-slo-ttft-ms", "soon"}, `x-slo-ttft-ms: x-slo-ttft-ms is "soon"; allowed: 0 (the class's own limit) to 3600000` + number},
		{"empty", free, []string{"x-slo-tpot-ms", ""}, `x-slo-tpot-ms: x-slo-tpot-ms is ""; allowed: 0 (the class's own limit) to 3600000` + number},
		{"too much", free, []string{"x-slo-ttft-ms", "3600000.1"}, `x-slo-ttft-ms: x-slo-ttft-ms is "3600000.1"; allowed: 0 (the class's own limit) to 3600000` + number},
		{"too tight", bounded, []string{"x-slo-ttft-ms", "199.9"}, `x-slo-ttft-ms: x-slo-ttft-ms is "199.9"; allowed: 200, the least for this key, to 3600000` + number + ", or 0 (the class's own limit)"},
		{"too tight a pace", bounded, []string{"x-slo-tpot-ms", "12"}, `x-slo-tpot-ms: x-slo-tpot-ms is "12"; allowed: 12.5, the least for this key, to 3600000` + number + ", or 0 (the class's own limit)"},
		{"two lines", free, []string{"x-slo-ttft-ms", "300", "x-slo-ttft-ms", "300"}, `x-slo-ttft-ms: x-slo-ttft-ms is "300, 300"; allowed: 0 (the class's own limit) to 3600000` + number},
	} {
		t.Run(tt.name, func(t *testing.T) {
			own, asked, err := tt.p.Limits(header(tt.h...))
			got := fmt.Sprint(own.TTFT, " ", own.TPOT)
			if asked {
				got += " asked"
			}
			if err != nil {
				got = err.Param + ": " + err.Message
				if err.Code != wire.CodeInvalidField || err.Status != 400 || own != (Limits{}) {
					t.Errorf("status %d, code %s, limits %v", err.Status, err.Code, own)
				}
			}
			if got != tt.want {
				t.Errorf("\nwant %s\ngot  %s", tt.want, got)
			}
		})
	}
	for _, v := range []string{"-1", "+1", "1e3", "0x10", "Inf", "NaN", "1_000", ".5", "5.", "1.2.3", "1 000", "1,5", "300ms", strings.Repeat("9", 30), strings.Repeat("0", 1<<16), "\x1b[31m"} {
		_, _, err := free.Limits(header("x-slo-ttft-ms", v))
		if err == nil {
			t.Errorf("%.40q is taken", v)
		} else if len(err.Message) > 300 || strings.ContainsAny(err.Message, "\x1b\r\n") {
			t.Errorf("%.40q: the message is %.400q", v, err.Message)
		}
	}
}

func TestValidateLimits(t *testing.T) {
	c := testConfig(t)
	c.Keys[0].SLOHeaders, c.Keys[0].SLOMin = true, SLOMin{TTFT: 2 * time.Hour, TPOT: -1}
	c.Keys[1].SLOMin = SLOMin{TTFT: time.Second}
	c.Anonymous = &Anonymous{Tenant: "t", Classes: []string{"batch"}, SLOHeaders: true, SLOMin: SLOMin{TPOT: time.Millisecond}}
	var got []string
	c.Validate(func(path string, value any, allowed string) {
		got = append(got, fmt.Sprintf("%s: %v: %s", path, value, allowed))
	})
	want := []string{
		"keys[0].slo_min.ttft: 2h0m0s: 0s to 1h0m0s",
		"keys[0].slo_min.tpot: -1ns: 0s to 1h0m0s",
		"keys[1].slo_min: a limit: nothing without slo_headers: true",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("\nwant %q\ngot  %q", want, got)
	}
	c.Keys[0].SLOMin, c.Keys[1].SLOMin = SLOMin{TTFT: time.Second}, SLOMin{}
	a := authenticator(t, c)
	alice, _ := a.Authenticate(asked(header("x-api-key", aliceKey)))
	bob, _ := a.Authenticate(asked(header("x-api-key", bobKey)))
	anonymous, _ := a.Authenticate(asked(header()))
	if !alice.SLOHeaders || alice.SLOMin.TTFT != time.Second || bob.SLOHeaders || !anonymous.SLOHeaders || anonymous.SLOMin.TPOT != time.Millisecond {
		t.Errorf("alice %+v, bob %+v, anonymous %+v", alice, bob, anonymous)
	}
}
