package gateway

import (
	"net"
	"sync"
)

// Limit bounds the connections that a listener has open; the next ones wait in
// the kernel to be accepted. A Gateway does it itself for what it serves.
func Limit(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	places chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	leave func()
}

func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite sends what is written and an end, so that a client that is still
// sending reads its answer before the connection breaks.
func (c *limitedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
