#!/bin/sh
# Builds a static binary for Linux that is the same wherever the same Go builds it:
#
#	tools/build.sh VERSION ARCH FILE
#
# This is the one way in which a binary for others is built: make release, the container
# and the Debian package have theirs from here.
set -eu
cd "$(dirname "$0")/.."
if [ ! -e console/dist/app/index.html.gz ]; then
	echo "build: the web console is not built: make console, with npm" >&2
	exit 1
fi
CGO_ENABLED=0 GOOS=linux GOARCH=$2 GOFLAGS= GOWORK=off exec go build -trimpath -buildvcs=false \
	-ldflags "-s -w -buildid= -X headgate/telemetry.Version=$1" -o "$3" ./cmd/headgate
