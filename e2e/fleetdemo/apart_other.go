//go:build !linux

package main

import "syscall"

// apart is a process of a group of its own. That it ends with this one can't be asked of
// other systems.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
