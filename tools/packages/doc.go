// Package packages checks what Headgate is installed by with the programs that install it:
// Helm, dpkg, systemd, Prometheus's promtool, goreleaser's own reading of its file. They are
// large, so they are a module of their own, and make check-packages runs them, not make test.
//
// Nothing outside the project is changed: packages are installed in an overlay of the
// machine's root that only the test sees, which takes root, and is skipped without.
package packages
