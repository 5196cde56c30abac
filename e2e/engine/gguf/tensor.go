package gguf

import (
	"encoding/binary"
	"math"
)

// The tensor types used here, as ggml numbers them.
const (
	typeF32 uint32 = 0
	typeQ8  uint32 = 8 // q8_0: blocks of 32, each a half-precision scale and 32 signed bytes
)

const q8Block = 32

// source is a splitmix64 stream: small, and the same on every machine.
type source uint64

func (s *source) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	x := uint64(*s)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// noise returns a uniform value of mean 0 and the given deviation.
func (s *source) noise(std float32) float32 {
	const unit = 3.4641016 // a uniform value over an interval of this width deviates by 1
	u := float32(int64(s.next()>>40)-(1<<23)) / (1 << 24)
	return float32(u*unit) * std
}

// tensor is one weight matrix: rows of cols values, written row by row.
type tensor struct {
	name       string
	cols, rows int
	typ        uint32
	// encode appends row i, in typ's layout.
	encode func(dst []byte, i int) []byte
}

func (t *tensor) bytes() uint64 {
	n := uint64(t.cols) * uint64(t.rows)
	switch t.typ {
	case typeF32:
		return 4 * n
	default:
		return n / q8Block * (2 + q8Block)
	}
}

// ones is a norm's weight: it scales nothing.
func ones(name string, cols int) tensor {
	return tensor{name: name, cols: cols, rows: 1, typ: typeF32, encode: func(dst []byte, _ int) []byte {
		for range cols {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(1))
		}
		return dst
	}}
}

// full is a single-precision matrix whose rows fill computes.
func full(name string, cols, rows int, fill func(i int, row []float32)) tensor {
	row := make([]float32, cols)
	return tensor{name: name, cols: cols, rows: rows, typ: typeF32, encode: func(dst []byte, i int) []byte {
		clear(row)
		fill(i, row)
		for _, f := range row {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(f))
		}
		return dst
	}}
}

// blindSpot says where a matrix must not touch dimension 0 of the residual
// stream, the constant.
type blindSpot uint8

const (
	seesAll blindSpot = iota
	noRow0            // writes nothing to it
	noCol0            // reads nothing from it
)

// random is a matrix of noise in single precision.
func random(s *source, name string, cols, rows int, std float32, blind blindSpot) tensor {
	return full(name, cols, rows, func(i int, row []float32) {
		for c := range row {
			row[c] = s.noise(std)
		}
		switch {
		case blind == noRow0 && i == 0:
			clear(row)
		case blind == noCol0:
			row[0] = 0
		}
	})
}

// quantized is a matrix of noise. Its signed bytes are drawn directly, without
// quantizing anything: uniform over -127..127, whose deviation is 73.6.
func quantized(s *source, name string, cols, rows int, std float32, blind blindSpot) tensor {
	scale := toHalf(std / 73.6)
	return tensor{name: name, cols: cols, rows: rows, typ: typeQ8, encode: func(dst []byte, i int) []byte {
		start := len(dst)
		for range cols / q8Block {
			dst = binary.LittleEndian.AppendUint16(dst, scale)
			for range q8Block / 8 {
				x := s.next()
				for range 8 {
					b := byte(x)
					if b == 0x80 { // -128: not every kernel takes it
						b = 0
					}
					dst = append(dst, b)
					x >>= 8
				}
			}
		}
		switch {
		case blind == noRow0 && i == 0:
			clear(dst[start:])
		case blind == noCol0:
			dst[start+2] = 0
		}
		return dst
	}}
}

// toHalf rounds towards zero to IEEE half precision; too small becomes zero and
// too large infinity.
func toHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign, exp, frac := uint16(b>>16)&0x8000, int(b>>23&0xff)-127, b&0x7fffff
	switch {
	case exp > 15:
		return sign | 0x7c00
	case exp >= -14:
		return sign | uint16(exp+15)<<10 | uint16(frac>>13)
	case exp >= -24: // subnormal
		return sign | uint16((frac|0x800000)>>(uint(-exp)-1))
	default:
		return sign
	}
}
