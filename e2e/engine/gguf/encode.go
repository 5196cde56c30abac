package gguf

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
)

// The metadata value types used here, as GGUF numbers them.
const (
	kindUint32  uint32 = 4
	kindInt32   uint32 = 5
	kindFloat32 uint32 = 6
	kindBool    uint32 = 7
	kindString  uint32 = 8
	kindArray   uint32 = 9
)

// alignment of the tensor data, in bytes: GGUF's default.
const alignment = 32

// encoder writes GGUF's little-endian primitives. The first error sticks; the
// rest is then ignored.
type encoder struct {
	w   *bufio.Writer
	n   uint64 // bytes written
	err error
	tmp []byte
}

func newEncoder(w io.Writer) *encoder {
	return &encoder{w: bufio.NewWriterSize(w, 1<<20)}
}

func (e *encoder) bytes(b []byte) {
	if e.err != nil {
		return
	}
	n, err := e.w.Write(b)
	e.n += uint64(n)
	e.err = err
}

func (e *encoder) u32(v uint32) {
	e.tmp = binary.LittleEndian.AppendUint32(e.tmp[:0], v)
	e.bytes(e.tmp)
}

func (e *encoder) u64(v uint64) {
	e.tmp = binary.LittleEndian.AppendUint64(e.tmp[:0], v)
	e.bytes(e.tmp)
}

func (e *encoder) str(s string) {
	e.u64(uint64(len(s)))
	e.bytes([]byte(s))
}

// value writes one metadata value behind its type.
func (e *encoder) value(v any) {
	switch v := v.(type) {
	case uint32:
		e.u32(kindUint32)
		e.u32(v)
	case int32:
		e.u32(kindInt32)
		e.u32(uint32(v))
	case float32:
		e.u32(kindFloat32)
		e.u32(math.Float32bits(v))
	case bool:
		e.u32(kindBool)
		b := byte(0)
		if v {
			b = 1
		}
		e.bytes([]byte{b})
	case string:
		e.u32(kindString)
		e.str(v)
	case []string:
		e.array(kindString, len(v))
		for _, s := range v {
			e.str(s)
		}
	case []float32:
		e.array(kindFloat32, len(v))
		for _, f := range v {
			e.u32(math.Float32bits(f))
		}
	case []int32:
		e.array(kindInt32, len(v))
		for _, i := range v {
			e.u32(uint32(i))
		}
	default:
		panic("gguf: metadata value of an unknown type")
	}
}

func (e *encoder) array(elem uint32, n int) {
	e.u32(kindArray)
	e.u32(elem)
	e.u64(uint64(n))
}

// pad fills up to the next multiple of the alignment.
func (e *encoder) pad() {
	var zeros [alignment]byte
	if rest := e.n % alignment; rest != 0 {
		e.bytes(zeros[:alignment-rest])
	}
}

func (e *encoder) flush() error {
	if e.err != nil {
		return e.err
	}
	return e.w.Flush()
}
