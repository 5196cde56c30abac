package bench

import (
	"os"
	"strconv"
	"strings"
)

// procField is the first value of a key in one of Linux's text files; "" where
// there is none.
func procField(file, key string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// procKB is such a value in kB.
func procKB(file, key string) int {
	n, _ := strconv.Atoi(strings.TrimSuffix(procField(file, key), " kB"))
	return n
}
