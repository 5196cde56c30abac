package need

import "syscall"

// EndsWithParent ends a process that is left behind by a test run which was
// killed.
func EndsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
