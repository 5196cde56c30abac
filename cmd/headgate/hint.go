package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// hinted is an error with the way out of it, which is told on a line of its own.
type hinted struct {
	err error
	do  string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// hint adds the way out to an error; nil stays nil.
func hint(err error, do string) error {
	if err == nil || do == "" {
		return err
	}
	return &hinted{err, do}
}

// usageHint is the way out of a line that is none of a command's.
func usageHint(cmd *cobra.Command, err error) error {
	do := cmd.CommandPath() + " --help says what it takes"
	text := err.Error()
	switch {
	case strings.Contains(text, "invalid duration"), strings.Contains(text, "missing unit in duration"):
		do = "write a number with its unit, such as 500ms, 30s, 10m or 2h"
	case strings.Contains(text, "strconv.Parse"):
		do = "write a number; " + do
	case strings.HasPrefix(text, "unknown command"):
		do = cmd.CommandPath() + " --help lists the commands"
	}
	if s, ok := errors.AsType[*status](err); ok {
		return &status{s.code, hint(s.err, do)}
	}
	return hint(err, do)
}

// listenHint is the way out for an address of a listener, which a key of the configuration
// and a flag give.
func listenHint(err error, key, flag string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return hint(err, "another program has the address, perhaps a gateway that runs already (ss -ltnp shows which): end it, or give another by "+key+" or "+flag)
	}
	return hint(err, cmp.Or(wayOut(err), "give host:port by "+key+" or "+flag+", such as 127.0.0.1:8080"))
}

// wayOut is what to do about an error: as who has made it says, or by what the system calls
// it; "": the error says it itself.
func wayOut(err error) string {
	if h, ok := errors.AsType[*hinted](err); ok {
		return h.do
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another program has the address (ss -ltnp shows which): end it, or give another"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give an address of this machine (ip addr shows them), or 0.0.0.0 for all of them"
	case errors.Is(err, syscall.ENOSPC):
		return "the disk is full: free some of it, or name a place on another"
	case errors.Is(err, syscall.EISDIR):
		return "it is a folder: name a file"
	case errors.Is(err, syscall.ENOTDIR):
		return "it is a file, or below one: name a folder"
	case errors.Is(err, syscall.EROFS):
		return "the disk takes no writes: name a place on another"
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files: ulimit -n"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: start what should, or give another address"
	case errors.Is(err, fs.ErrNotExist):
		return "name one that is there; a folder is made by mkdir -p"
	case errors.Is(err, fs.ErrPermission):
		return "run it as a user who may, or give this one the right; ports below 1024 are for root, or for CAP_NET_BIND_SERVICE"
	case errors.As(err, new(*tls.CertificateVerificationError)), errors.As(err, new(x509.UnknownAuthorityError)):
		return "name the authority that has signed the certificate"
	case errors.As(err, new(*net.DNSError)):
		return "write a host that this machine can resolve"
	case errors.Is(err, context.DeadlineExceeded):
		return "see whether what was asked runs, and whether a firewall is between"
	}
	return ""
}
