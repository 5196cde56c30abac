//go:build !linux

package proctest

import (
	"os"
	"syscall"
)

// EndsWithParent can't be asked of other systems.
func EndsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// Suspend stops a process that this one has started.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
