package config

import _ "embed"

// Schema is the JSON Schema (2020-12) of a configuration file, for editors: they
// complete keys, show what each is for, and mark what Parse would refuse. It is made
// from the structs, their comments and what validation says of single values;
// go test ./config -rewrite writes it. It is narrower than Parse only in forms that
// nobody writes (1e1%, HTTP://), and wider where a rule is about several values.
//
//go:embed schema.json
var Schema []byte
