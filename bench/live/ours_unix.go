//go:build unix && !linux

package live

import "syscall"

// ours makes a process the first of a group of its own, so that what it starts can
// be ended with it. Only Linux ends it when this one is killed.
func ours() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
