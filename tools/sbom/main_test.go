package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The test's own binary is one that has modules in it.
func TestList(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var a, b bytes.Buffer
	for _, out := range []*bytes.Buffer{&a, &b} {
		if err := run(self, out); err != nil {
			t.Fatal(err)
		}
	}
	if a.String() != b.String() {
		t.Error("the same binary gives two lists")
	}
	var l bom
	d := json.NewDecoder(&a)
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		t.Fatal(err)
	}
	if l.Format != "CycloneDX" || l.Spec != "1.6" || !strings.HasPrefix(l.Serial, "urn:uuid:") || len(l.Serial) != len("urn:uuid:")+36 {
		t.Errorf("%+v", l)
	}
	if l.Metadata.Component.Name != "headgate/tools" || len(l.Metadata.Component.Hashes[0].Content) != 64 {
		t.Errorf("%+v", l.Metadata.Component)
	}
	if len(l.Components) < 1 || len(l.Dependencies[0].On) != len(l.Components) || l.Components[len(l.Components)-1].Ref != "std" {
		t.Errorf("%+v", l.Components)
	}
	if err := run(os.Args[0]+".none", &a); err == nil {
		t.Error("of a file that is not there a list was made")
	}
}
