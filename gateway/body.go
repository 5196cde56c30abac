package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"headgate/wire"
)

// firstBody is how much room a body gets before any of it has come: a length
// that a client declares costs it nothing and must not cost us more.
const firstBody = 32 << 10

// read reads the body within its limits.
func (g *Gateway) read(w *response, r *http.Request) ([]byte, *wire.Error) {
	limit := w.cfg.Limits.BodyBytes
	if r.ContentLength > limit {
		return nil, wire.BodyTooLarge(limit)
	}
	// A server that can't set deadlines (a test's recorder) reads without one.
	_ = w.control.SetReadDeadline(time.Now().Add(w.cfg.Limits.BodyTimeout))
	body, err := readAll(http.MaxBytesReader(w.out, r.Body, limit), r.ContentLength)
	var large *http.MaxBytesError
	var broken net.Error
	switch {
	case err == nil:
		w.unread = false
		_ = w.control.SetReadDeadline(time.Time{})
		if g.forwarder != nil {
			w.body = body
		}
		return body, nil
	case errors.As(err, &large):
		return nil, wire.BodyTooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, wire.BodyTooSlow(w.cfg.Limits.BodyTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &broken), errors.Is(err, net.ErrClosed):
		return nil, wire.ClientClosed()
	}
	return nil, wire.NewError(wire.CodeInvalidJSON, "the body can't be read: its chunked encoding is malformed")
}

// readAll reads length bytes, or to the end where length is -1. The buffer at
// most doubles as the bytes come.
func readAll(in io.Reader, length int64) ([]byte, error) {
	room := int64(firstBody)
	if length >= 0 {
		room = min(room, length)
	}
	buf := make([]byte, 0, room)
	for int64(len(buf)) != length {
		if len(buf) == cap(buf) {
			grown := 2 * int64(cap(buf))
			if length >= 0 {
				grown = min(grown, length)
			}
			buf = append(make([]byte, 0, grown), buf...)
		}
		n, err := in.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) == length:
		case err == io.EOF && length < 0:
			return buf, nil
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
	return buf, nil
}
