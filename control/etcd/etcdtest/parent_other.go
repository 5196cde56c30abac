//go:build !linux

package etcdtest

import "syscall"

// endsWithParent can't be asked of other systems.
func endsWithParent() *syscall.SysProcAttr { return nil }
