// Command sbom lists what is linked into a Go binary, as CycloneDX JSON. What it says is
// read out of the binary itself and nothing else, so the same binary gives the same list,
// on any machine and without a network.
//
//	sbom bin/release/headgate-linux-amd64 > headgate.cdx.json
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: sbom BINARY")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(list(info, sha256.Sum256(b)))
}

type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	PURL       string     `json:"purl,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn,omitempty"`
}

// list is what a binary is made of. Its number is made of the binary's hash.
func list(info *debug.BuildInfo, sum [sha256.Size]byte) *bom {
	main := component{
		Ref: "headgate", Type: "application", Name: info.Main.Path, Version: version(info),
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" || s.Key == "-trimpath" {
			main.Properties = append(main.Properties, property{"go:" + s.Key, s.Value})
		}
	}
	b := &bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{main},
		Serial: uuid(sum),
	}
	std := strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")
	b.Components = append(b.Components, component{Ref: "std", Type: "library", Name: "std", Version: std, PURL: "pkg:golang/std@" + std})
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		purl := "pkg:golang/" + m.Path + "@" + m.Version
		c := component{Ref: purl, Type: "library", Name: m.Path, Version: m.Version, PURL: purl}
		if m.Sum != "" {
			c.Properties = []property{{"go:sum", m.Sum}}
		}
		b.Components = append(b.Components, c)
	}
	slices.SortFunc(b.Components, func(x, y component) int { return strings.Compare(x.Ref, y.Ref) })
	d := dependency{Ref: main.Ref}
	for _, c := range b.Components {
		d.On = append(d.On, c.Ref)
	}
	b.Dependencies = []dependency{d}
	return b
}

// version is what the linker was told, since a build without version control has no other.
func version(info *debug.BuildInfo) string {
	for _, s := range info.Settings {
		if s.Key != "-ldflags" {
			continue
		}
		for _, word := range strings.Fields(s.Value) {
			if _, v, ok := strings.Cut(word, "telemetry.Version="); ok {
				return strings.Trim(v, `"'`)
			}
		}
	}
	return info.Main.Version
}

// uuid is a version 8 UUID of a hash.
func uuid(sum [sha256.Size]byte) string {
	u := slices.Clone(sum[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
