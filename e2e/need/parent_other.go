//go:build !linux

package need

import "syscall"

// EndsWithParent can't be asked of other systems.
func EndsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
