// Package deploy is what Headgate is installed by: a chart, a unit, a Debian package, and
// what to watch of it (package monitoring). It has no code of its own. Its tests hold these
// files against each other and against what the process does: configurations are read as
// the process reads them, ports, paths, users and times are the same everywhere.
//
// What takes Helm, dpkg, systemd or Prometheus's own tools is in tools/packages, which make
// check-packages runs. What it has rendered is committed in helm/testdata, with the hash of
// what it was rendered from, so that the tests here need none of them and still see a chart
// that is not what was checked.
package deploy
