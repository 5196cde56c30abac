//go:build !linux

package headgate

import "syscall"

// endsWithParent can't be asked of other systems.
func endsWithParent() *syscall.SysProcAttr { return nil }
