#!/usr/bin/env bash
# Makes console/dist/app, the web console that the binary embeds, where its source is another
# than what is there was made of. Without npm there is none, which is said.
set -euo pipefail
cd "$(dirname "$0")/../console"
made=node_modules/.app-made-from
source=$(find package.json package-lock.json tsconfig.json vite.config.js index.html src public -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
if [ -e dist/app/index.html.gz ] && [ "$(cat "$made" 2>/dev/null)" = "$source" ]; then
	exit 0
fi
if ! command -v npm >/dev/null; then
	echo "console: npm is missing, so the binary is built without the web console; install Node 20 and npm for it" >&2
	exit 0
fi
if ! cmp -s package-lock.json node_modules/.made-from; then
	npm ci --no-audit --no-fund
	cp package-lock.json node_modules/.made-from
fi
npm run --silent build
echo "$source" >"$made"
