#!/usr/bin/env bash
# Gets Hugo, which only the site of the pages needs.
set -euo pipefail
command -v hugo >/dev/null && exit
if [ "$(id -u)" = 0 ]; then
	as=()
elif sudo -n true 2>/dev/null; then
	as=(sudo)
else
	echo "docs: hugo is missing, and installing it takes root. Run:" >&2
	echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends hugo" >&2
	exit 1
fi
"${as[@]}" apt-get update -q
"${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends hugo
