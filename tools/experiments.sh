#!/usr/bin/env bash
# The plans of docs/experiments:
#   experiments.sh run sim|live DIR   runs them by that runner, each into DIR/NAME, with its report
#   experiments.sh keep DIR           puts DIR's reports into docs/experiments/evidence
# An interrupted run goes on where it was. What is kept is not replaced: to keep
# evidence of a policy that has changed, the old one is removed in the same commit.
set -euo pipefail
cd "$(dirname "$0")/.."
headgate=${HEADGATE:-./bin/headgate}

# plan.yaml of docs/experiments/1-published/1.5.yaml is called 1-published-1.5
name() {
	local path=${1#docs/experiments/}
	path=${path%.yaml}
	echo "${path//\//-}"
}

case "${1:-} $#" in
"run 3")
	failed=
	while IFS= read -r plan; do
		dir=$3/$(name "$plan")
		"$headgate" bench run "$plan" --out "$dir" 2>"$dir.log" || { failed=1; tail -3 "$dir.log" >&2; continue; }
		echo "$(name "$plan"): $("$headgate" bench report "$dir" | head -1)"
	done < <(mkdir -p "$3" && find docs/experiments -name '*.yaml' -exec grep -lx "runner: $2" {} + | sort)
	[ -z "$failed" ]
	;;
"keep 2")
	mkdir -p docs/experiments/evidence
	for dir in "$2"/*/; do
		kept=docs/experiments/evidence/$(basename "$dir")
		if grep -q '"runner": "live"' "$dir/manifest.json"; then
			# What ran in real time can't be made again: all of it is kept.
			[ -e "$kept.tar.gz" ] || tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | gzip -9n >"$kept.tar.gz"
		fi
		[ -e "$kept.json.gz" ] || gzip -9nc "$dir/report.json" >"$kept.json.gz"
	done
	;;
*)
	echo "experiments.sh: allowed are: run sim DIR, run live DIR, keep DIR" >&2
	exit 2
	;;
esac
