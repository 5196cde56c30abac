package advise

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// stated is what a text says of an engine.
type stated struct {
	what string // slots, kv_tokens, max_context, or ctx for llama-server's context of all slots
	re   *regexp.Regexp
	// with has to be in the line too, for flags that other programs have as well.
	with *regexp.Regexp
}

const number = `[ =:"'` + "`" + `]+(\d[\d_,]*\.?\d*)([kKmM]?)\b`

// statements are the forms in which documentation, scripts and units say numbers. The
// first that matches a place counts.
var statements = []stated{
	{"slots", regexp.MustCompile(`(?:--parallel|-np|--max-num-seqs|--max[-_]running[-_]requests|OLLAMA_NUM_PARALLEL)` + number), nil},
	{"max_context", regexp.MustCompile(`(?:--max-model-len|--context-length|OLLAMA_CONTEXT_LENGTH)` + number), nil},
	{"kv_tokens", regexp.MustCompile(`--max-total-tokens` + number), nil},
	{"ctx", regexp.MustCompile(`--ctx-size` + number), nil},
	{"ctx", regexp.MustCompile(`(?:^|\s)-c` + number), regexp.MustCompile(`llama|-np|\.gguf`)},
	{"slots", regexp.MustCompile(`\bslots` + number), nil},
	{"kv_tokens", regexp.MustCompile(`\bkv_tokens` + number), nil},
	{"max_context", regexp.MustCompile(`\bmax_context` + number), nil},
	{"slots", regexp.MustCompile(`(?i)\b(\d[\d,]*)()\s+(?:parallel\s+|concurrent\s+)?(?:slots|sequences at once)\b`), nil},
	{"kv_tokens", regexp.MustCompile(`(?i)\b(\d[\d,]*\.?\d*)\s?([kKmM]?)[- ]tokens? (?:of )?KV\b`), nil},
	{"kv_tokens", regexp.MustCompile(`(?i)\b(\d[\d,]*\.?\d*)\s?([kKmM]?) KV tokens\b`), nil},
	{"max_context", regexp.MustCompile(`(?i)\b(\d[\d,]*\.?\d*)\s?([kKmM]?)[- ]tokens? (?:of )?context\b`), nil},
	{"max_context", regexp.MustCompile(`(?i)\bcontext (?:window |length |limit |size )?(?:of|is) (\d[\d,]*\.?\d*)\s?([kKmM]?)\b`), nil},
}

// textFiles are the names' ends that are read in a folder.
var textFiles = []string{".md", ".txt", ".rst", ".adoc", ".sh", ".service", ".env", ".conf", ".yaml", ".yml"}

// Bounds of a scan.
const (
	mostFile  = 1 << 20 // bytes
	mostFiles = 10_000
)

// Documented is one number that a text states.
type Documented struct {
	What  string
	Where string // file and line
	Text  string // as it stands
	Least float64
	Most  float64 // k may be 1000 or 1024
}

// ScanDocs reads files, and the text files in folders, for numbers that are said of an
// engine. skip is a file that is left out: the configuration that they are held against.
func ScanDocs(paths []string, skip string) ([]Documented, error) {
	var all []Documented
	n := 0
	read := func(path string) error {
		if sameFile(path, skip) {
			return nil
		}
		if n++; n > mostFiles {
			return fmt.Errorf("--docs: more than %d files: allowed is a folder with fewer", mostFiles)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("--docs: %w", err)
		}
		all = append(all, scan(path, b)...)
		return nil
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("--docs: %w", err)
		}
		if !info.IsDir() {
			if err := read(path); err != nil {
				return nil, err
			}
			continue
		}
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return fmt.Errorf("--docs: %w", err)
			case d.IsDir() && p != path && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
				return filepath.SkipDir
			case !d.Type().IsRegular() || !slices.Contains(textFiles, strings.ToLower(filepath.Ext(p))):
				return nil
			}
			if info, err := d.Info(); err != nil || info.Size() > mostFile {
				return err
			}
			return read(p)
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func sameFile(a, b string) bool {
	if b == "" {
		return false
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// scan finds the numbers of one text.
func scan(path string, b []byte) []Documented {
	var all []Documented
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, mostFile+1)
	for line := 1; lines.Scan(); line++ {
		text := lines.Text()
		var taken [][]int
		for _, s := range statements {
			if s.with != nil && !s.with.MatchString(text) {
				continue
			}
			for _, m := range s.re.FindAllStringSubmatchIndex(text, -1) {
				if slices.ContainsFunc(taken, func(o []int) bool { return m[0] < o[1] && o[0] < m[1] }) {
					continue
				}
				v, err := strconv.ParseFloat(strings.NewReplacer(",", "", "_", "").Replace(strings.TrimRight(text[m[2]:m[3]], ",.")), 64)
				if err != nil || v == 0 || math.IsInf(v, 0) {
					continue // 0 is most engines' word for their own
				}
				taken = append(taken, m)
				d := Documented{What: s.what, Where: fmt.Sprintf("%s:%d", path, line), Text: strings.TrimSpace(text[m[0]:m[1]]), Least: v, Most: v}
				switch strings.ToLower(text[m[4]:m[5]]) {
				case "k":
					d.Least, d.Most = v*1000, v*1024
				case "m":
					d.Least, d.Most = v*1e6, v*(1<<20)
				}
				all = append(all, d)
			}
		}
	}
	return all
}

// Contradicts holds what texts state against the engines of a configuration. A number
// is right if it is that of any of them.
func Contradicts(stated []Documented, engines []Engine) []Finding {
	said := map[string][]int64{}
	unknown := map[string]bool{}
	for i := range engines {
		e := &engines[i]
		length := e.MaxLength
		if length == 0 {
			length = e.KVTokens
		}
		for what, n := range map[string]int64{"slots": e.Slots, "kv_tokens": e.KVTokens, "max_context": length} {
			if n == 0 {
				unknown[what] = true
			}
			said[what] = append(said[what], n)
		}
	}
	// llama-server's --ctx-size is its whole KV, and a slot's context with it.
	said["ctx"], unknown["ctx"] = said["kv_tokens"], unknown["kv_tokens"]
	var all []Finding
	for _, d := range stated {
		// What an engine is left to say itself contradicts nothing.
		if unknown[d.What] || slices.ContainsFunc(said[d.What], func(n int64) bool { return float64(n) >= d.Least*near && float64(n) <= d.Most/near }) {
			continue
		}
		key := d.What
		if key == "ctx" {
			key = "kv_tokens"
		}
		var have []string
		for _, n := range slices.Compact(slices.Sorted(slices.Values(said[d.What]))) {
			have = append(have, strconv.FormatInt(n, 10))
		}
		all = append(all, Finding{true, d.Where, fmt.Sprintf("it states %q, and the configuration's %s is %s", d.Text, key, strings.Join(have, ", "))})
	}
	return all
}
