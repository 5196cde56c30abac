package main

import "syscall"

// apart is a process of a group of its own, that ends with this one.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
