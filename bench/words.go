package bench

import (
	"net/url"
	"reflect"
	"strings"
)

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.TrimSuffix(u.Path, "/") == ""
}

// planKeys are all keys that a plan may have somewhere.
func planKeys() []string {
	var keys []string
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for i := range t.NumField() {
			if key := t.Field(i).Tag.Get("yaml"); key != "" {
				keys = append(keys, key)
				walk(t.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[Plan]())
	return keys
}

// nearest is the word that is fewest changes away, "" where all are other words.
func nearest(word string, known []string) string {
	best, at := "", len(word)/2+1
	for _, k := range known {
		if d := distance(word, k); d < at {
			best, at = k, d
		}
	}
	return best
}

// distance counts the insertions, deletions and replacements that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(change, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
