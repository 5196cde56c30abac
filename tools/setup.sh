#!/usr/bin/env bash
# Installs what building and testing need besides Go and Node: a C compiler for
# the race detector, curl, the end-to-end tests' npm packages, and the checkers. Run
# again, it does nothing and is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
	echo "setup: $1 is missing; install it and run make setup again" >&2
	exit 1
}
command -v go >/dev/null || need "go ($(sed -n 's/^go //p' go.mod) or later)"
command -v npm >/dev/null || need "npm (of Node 20 or later)"

# libc6-dev is there if a program that includes a header can be linked. The
# tests run the pages' commands, which use curl.
if ! command -v curl >/dev/null || ! echo '#include <stdlib.h>
int main(void) { return 0; }' | gcc -x c -o /dev/null - 2>/dev/null; then
	install="apt-get install -y --no-install-recommends gcc libc6-dev curl ca-certificates"
	if [ "$(id -u)" = 0 ]; then
		apt-get update -q
		$install
	elif sudo -n true 2>/dev/null; then
		sudo apt-get update -q
		sudo $install
	else
		echo "setup: gcc, libc6-dev or curl is missing, and installing them takes root. Run:" >&2
		echo "    sudo apt-get update && sudo $install" >&2
		exit 1
	fi
fi

# npm's folders are as good as the lock file they were made from.
for dir in e2e/client e2e/engine; do
	made=$dir/node_modules/.made-from
	if ! cmp -s "$dir/package-lock.json" "$made"; then
		npm ci --prefix "$dir" --no-audit --no-fund
		cp "$dir/package-lock.json" "$made"
	fi
done

mkdir -p bin
go -C tools build -o ../bin/ ./testlog ./bars honnef.co/go/tools/cmd/staticcheck
