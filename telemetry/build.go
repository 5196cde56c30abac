package telemetry

import (
	"runtime"
	"runtime/debug"
)

// Version is set when the binary is linked:
//
//	go build -ldflags "-X headgate/telemetry.Version=v1.2.3"
var Version string

// Build says what the running binary was built from.
type Build struct {
	Version  string // "dev" where nobody said
	Revision string // version control's, with "+dirty" where files were changed; "" where unknown
	Go       string // the toolchain
}

// ReadBuild returns the running binary's Build.
func ReadBuild() Build {
	b := Build{Version: Version, Go: runtime.Version()}
	if b.Version == "" {
		b.Version = "dev"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && b.Revision != "" {
		b.Revision += "+dirty"
	}
	return b
}

// String is what headgate version prints.
func (b Build) String() string {
	s := "headgate " + b.Version
	if b.Revision != "" {
		s += " (" + b.Revision + ")"
	}
	return s + " " + b.Go
}
