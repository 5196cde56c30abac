package etcdtest

import "syscall"

// endsWithParent ends a process that is left behind by a test run which was killed,
// even one that is stopped.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
