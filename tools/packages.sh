#!/usr/bin/env bash
# Gets what make check-packages runs into bin/packages: Helm, built from its source, and
# promtool, out of Debian's package of Prometheus, which is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p bin/packages
[ -x bin/packages/helm ] || go -C tools/packages build -o ../../bin/packages/helm helm.sh/helm/v3/cmd/helm
if [ ! -x bin/packages/promtool ] && ! command -v promtool >/dev/null; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	chmod 755 "$dir"
	if (cd "$dir" && apt-get download -q prometheus >/dev/null); then
		dpkg-deb -x "$dir"/prometheus_*.deb "$dir"
		cp "$dir/usr/bin/promtool" bin/packages/
	else
		echo "packages: promtool is not to be had (apt-get update?); what it checks is skipped" >&2
	fi
fi
# podman builds the image, and runc runs it.
for tool in podman runc; do
	command -v "$tool" >/dev/null && continue
	[ "$(id -u)" = 0 ] && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$tool" >/dev/null ||
		echo "packages: $tool is not to be had; what it checks is skipped" >&2
done
