package headgate

import "syscall"

// endsWithParent ends a process that is left behind by a test run which was
// killed.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
