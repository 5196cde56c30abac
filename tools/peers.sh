#!/usr/bin/env bash
# Installs what make bench-peers compares Headgate with: nginx and HAProxy from Debian,
# vmauth by the Go module proxy, Portkey's gateway by npm. What can't be had is said, and
# the report says so again; the others are compared all the same. Run again, it does
# nothing and is quick.
set -uo pipefail
cd "$(dirname "$0")/.."

vmauth=v1.151.0
into=$PWD/.cache/peers
missing=()

as=()
[ "$(id -u)" = 0 ] || as=(sudo -n)
want=()
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || want+=(nginx-light)
command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || want+=(haproxy)
if [ ${#want[@]} -gt 0 ]; then
	# Only the programs: nothing is to listen on the machine's ports because of this.
	policy=/usr/sbin/policy-rc.d
	[ -e "$policy" ] && policy=
	[ -z "$policy" ] || trap '"${as[@]}" rm -f "$policy"' EXIT
	[ -z "$policy" ] || trap 'exit 130' INT TERM HUP # which has EXIT done
	[ -z "$policy" ] || printf '#!/bin/sh\nexit 101\n' | "${as[@]}" install -m 755 /dev/stdin "$policy"
	"${as[@]}" apt-get update -q &&
		"${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${want[@]}" ||
		missing+=("${want[@]}")
	[ -z "$policy" ] || "${as[@]}" rm -f "$policy"
	trap - EXIT INT TERM HUP
fi

mkdir -p "$into"
if ! command -v vmauth >/dev/null && [ ! -x "$into/vmauth" ]; then
	GOBIN=$into GOFLAGS=-buildvcs=false go install "github.com/VictoriaMetrics/VictoriaMetrics/app/vmauth@$vmauth" || missing+=(vmauth)
fi

lock=gateway/overhead/peers/portkey/package-lock.json
if ! cmp -s "$lock" "$into/node_modules/.made-from"; then
	cp gateway/overhead/peers/portkey/{package.json,package-lock.json,.npmrc} "$into/" &&
		npm ci --prefix "$into" --omit=dev --no-audit --no-fund &&
		cp "$lock" "$into/node_modules/.made-from" || missing+=(@portkey-ai/gateway)
fi

if [ ${#missing[@]} -gt 0 ]; then
	echo "peers: could not be installed, and will not be compared: ${missing[*]}" >&2
fi
