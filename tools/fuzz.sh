#!/usr/bin/env bash
# Runs every fuzz target of the module, or of some packages, one at a time, for the
# given time each.
#
#	tools/fuzz.sh 6s
#	tools/fuzz.sh 1s ./wire/...
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:?the time for each target, such as 6s}
shift
[ $# -gt 0 ] || set -- ./...

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
cache=$(go env GOCACHE)/fuzz
failed=0
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@")
while read -r pkg dir; do
	# Listing by go test would build every package; the names are in the text.
	targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -c6- | sort || true)
	[ -n "$targets" ] || continue
	# Built once for all of its targets, as go test builds it for one.
	go test -c -fuzz . -o "$built/fuzz.test" "$pkg"
	for target in $targets; do
		echo "== $pkg $target"
		# Minimizing what is merely interesting would take the time of searching.
		(cd "$dir" && "$built/fuzz.test" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$time" -test.fuzzminimizetime 1s -test.fuzzcachedir "$cache/$pkg") </dev/null || failed=1
	done
done <<<"$packages"
exit $failed
