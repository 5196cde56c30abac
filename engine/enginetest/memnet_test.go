package enginetest

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewListener()
		accepted := make(chan net.Conn)
		go func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		a, err := l.DialContext(t.Context(), "tcp", "any:80")
		if err != nil {
			t.Fatal(err)
		}
		b := <-accepted
		// Writes do not wait for a reader, and arrive in order.
		for _, s := range []string{"one ", "two"} {
			if _, err := io.WriteString(a, s); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, 64)
		if n, err := b.Read(buf); err != nil || string(buf[:n]) != "one two" {
			t.Errorf("%q, %v", buf[:n], err)
		}
		// A deadline ends a read under way, and a new one allows the next.
		start := time.Now()
		_ = b.SetReadDeadline(start.Add(time.Second))
		if _, err := b.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		_ = b.SetDeadline(time.Time{})
		go func() {
			time.Sleep(time.Hour)
			_, _ = io.WriteString(a, "late")
			_ = a.Close()
		}()
		if n, err := b.Read(buf); err != nil || string(buf[:n]) != "late" {
			t.Errorf("%q, %v", buf[:n], err)
		}
		// The peer's close is an end for reads and a broken pipe for writes.
		if _, err := b.Read(buf); err != io.EOF {
			t.Error(err)
		}
		if _, err := b.Write(buf); !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		if _, err := a.Read(buf); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := a.Write(buf); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		_ = b.Close()
		_ = l.Close()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if _, err := l.DialContext(t.Context(), "tcp", "any:80"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Error(err)
		}
		if l.Dialed() != 1 {
			t.Error(l.Dialed())
		}
	})
}
