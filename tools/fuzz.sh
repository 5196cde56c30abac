#!/usr/bin/env bash
# Runs every fuzz target of the module, one at a time, for the given time each.
#
#	tools/fuzz.sh 6s
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:?the time for each target, such as 6s}

failed=0
packages=$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./...)
while read -r pkg dir; do
	# Listing by go test would build every package; the names are in the text.
	targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -c6- | sort || true)
	for target in $targets; do
		echo "== $pkg $target"
		# Minimizing what is merely interesting would take the time of searching.
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s "$pkg" </dev/null || failed=1
	done
done <<<"$packages"
exit $failed
