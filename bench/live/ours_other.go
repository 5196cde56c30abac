//go:build !unix

package live

import "syscall"

func ours() *syscall.SysProcAttr { return nil }
