#!/usr/bin/env bash
# Installs what building and testing need besides Go and Node: a C compiler for
# the race detector, curl, PostgreSQL, Chromium, the end-to-end tests' npm packages, and
# the checkers. Run again, it does nothing and is quick.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
	echo "setup: $1 is missing; install it and run make setup again" >&2
	exit 1
}
command -v go >/dev/null || need "go ($(sed -n 's/^go //p' go.mod) or later)"
command -v npm >/dev/null || need "npm (of Node 20 or later)"

# install NAME... gets Debian packages, and is false where that takes somebody else.
install() {
	local as=()
	if [ "$(id -u)" != 0 ]; then
		sudo -n true 2>/dev/null || return 1
		as=(sudo)
	fi
	"${as[@]}" apt-get update -q
	"${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# libc6-dev is there if a program that includes a header can be linked. The
# tests run the pages' commands, which use curl.
if ! command -v curl >/dev/null || ! echo '#include <stdlib.h>
int main(void) { return 0; }' | gcc -x c -o /dev/null - 2>/dev/null; then
	install gcc libc6-dev curl ca-certificates || {
		echo "setup: gcc, libc6-dev or curl is missing, and installing them takes root. Run:" >&2
		echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends gcc libc6-dev curl ca-certificates" >&2
		exit 1
	}
fi

# The tests of batches that replicas share start PostgreSQL themselves, from wherever
# Debian has put it. Without it they are skipped, and fail where CI=true.
if ! command -v postgres >/dev/null && ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
	install postgresql || echo "setup: PostgreSQL is missing, so its tests are skipped; sudo apt-get install -y postgresql gets it" >&2
fi

# The tests of the web console look at it in a browser; likewise.
if ! command -v chromium >/dev/null; then
	install chromium || echo "setup: Chromium is missing, so the console's tests are skipped; sudo apt-get install -y chromium gets it" >&2
fi

# npm's folders are as good as the lock file they were made from.
for dir in e2e/client e2e/console e2e/engine; do
	made=$dir/node_modules/.made-from
	if ! cmp -s "$dir/package-lock.json" "$made"; then
		npm ci --prefix "$dir" --no-audit --no-fund
		cp "$dir/package-lock.json" "$made"
	fi
done

mkdir -p bin
go -C tools build -o ../bin/ ./testlog ./bars honnef.co/go/tools/cmd/staticcheck
