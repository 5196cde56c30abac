#!/usr/bin/env bash
# Makes the Debian package of a binary that tools/build.sh has built:
#
#	tools/deb.sh VERSION ARCH BINARY FOLDER
#
# The same binary and the same commit give the same package.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1 arch=$2 binary=$3 out=$4

# A tag is a version; what is behind one sorts behind it, what leads to one before it, and
# what has none before all that have.
v=${version#v}
if [[ $v =~ ^([0-9]+\.[0-9]+\.[0-9]+)-([0-9]+)-g([0-9a-f]+)(-dirty)?$ ]]; then
	v=${BASH_REMATCH[1]}+${BASH_REMATCH[2]}.${BASH_REMATCH[3]}${BASH_REMATCH[4]/-/.}
elif [[ $v =~ ^([0-9]+\.[0-9]+\.[0-9]+)(-([0-9A-Za-z.]+))?$ ]]; then
	v=${BASH_REMATCH[1]}${BASH_REMATCH[3]:+~${BASH_REMATCH[3]}}
else
	v=0.0.0~${v//-/.}
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp "$binary" "$dir/headgate"
gzip -9nc CHANGELOG.md >"$dir/changelog.gz"
# Of this machine's own build, since that of another architecture does not run here.
go build -o "$dir/here" ./cmd/headgate
"$dir/here" completion bash >"$dir/headgate.bash"
mkdir -p "$out"
nfpm=$(go -C tools/packages tool -n nfpm)
export DIR=$dir ARCH=$arch DEB_VERSION=$v SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
"$nfpm" package --config deploy/debian/nfpm.yaml --packager deb --target "$out/"
