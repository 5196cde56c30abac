package proctest

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// EndsWithParent ends a process that is left behind by a test run which was
// killed.
func EndsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// Suspend stops a process that this one has started, and returns once it stands still:
// the signal is heard only when the thread that it is for has its turn, and the process's
// others run on until then.
func Suspend(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != unix.EINTR {
			return err
		}
	}
}
