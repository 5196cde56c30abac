#!/usr/bin/env bash
# Makes bin/release: static binaries that are the same wherever they are built, Debian
# packages of them, a list of what is in them, what is known against that, the chart, and
# checksums. It is the one way in which a release is made; goreleaser only publishes it.
#
#	tools/release.sh VERSION [ARCH...]
#
# OUT is another folder for it; what is in there goes.
# What is known is asked of govulncheck's database (GOVULNDB, vuln.go.dev by default). Where
# that can't be reached the release is made, and says in VULNERABILITIES that nobody asked.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?the version, such as v1.2.3}
shift
[ $# -gt 0 ] || set -- amd64 arm64
GOVULNCHECK=golang.org/x/vuln/cmd/govulncheck@v1.1.4
out=$(realpath -m "${OUT:-bin/release}")
rm -rf "$out"
mkdir -p "$out"

# The second build is of a copy of what is committed, in another place.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git archive HEAD | tar -x -C "$copy"
mkdir "$copy/out"
cp -R console/dist/app "$copy/console/dist/app"
for arch in "$@"; do
	name=headgate-linux-$arch
	tools/build.sh "$version" "$arch" "$out/$name"
	"$copy/tools/build.sh" "$version" "$arch" "$copy/out/$name"
	cmp "$out/$name" "$copy/out/$name" || {
		echo "release: $name is not the same when it is built of what is committed, elsewhere" >&2
		exit 1
	}
	if readelf -lW "$out/$name" | grep -q INTERP; then
		echo "release: $name is not static: it asks for a loader, which the image has not" >&2
		exit 1
	fi
	echo "release: $out/$name, the same twice"
	tools/deb.sh "$version" "$arch" "$out/$name" "$out"
done
go -C tools run ./sbom "$out/headgate-linux-$1" >"$out/headgate.cdx.json"
cp SECURITY.md LICENSE CHANGELOG.md deploy/prometheus/headgate.yaml "$out/"
cp deploy/grafana/headgate.json "$out/headgate-dashboard.json"
# The chart as helm package would have it, and always the same.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --exclude=ci -C deploy/helm -c headgate | gzip -9n >"$out/headgate-chart.tgz"

# Its status is 3 where something is found, and another where it could not look. go run would
# make 1 of either.
status=0
if GOBIN=$copy/bin go install "$GOVULNCHECK" 2>"$out/VULNERABILITIES"; then
	"$copy/bin/govulncheck" ${GOVULNDB:+-db "$GOVULNDB"} ./cmd/headgate >"$out/VULNERABILITIES" 2>&1 || status=$?
else
	status=1
fi
case $status in
0) echo "release: govulncheck knows of nothing" ;;
3)
	cat "$out/VULNERABILITIES" >&2
	echo "release: govulncheck knows of vulnerabilities" >&2
	exit 3
	;;
*)
	{
		echo "NOT CHECKED: govulncheck is not to be had, or could not ask its database (${GOVULNDB:-https://vuln.go.dev}):"
		tail -n 1 "$out/VULNERABILITIES"
	} >"$copy/said"
	mv "$copy/said" "$out/VULNERABILITIES"
	echo "release: govulncheck was not asked, as $out/VULNERABILITIES says"
	;;
esac
(cd "$out" && sha256sum -- * >SHA256SUMS)
echo "release: $out"
