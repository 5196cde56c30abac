package telemetry

// Other is the label value of everything that is not configured.
const Other = "other"

// Names is a set of configured names that may be label values. The zero Names
// knows none.
type Names struct{ known map[string]struct{} }

// NewNames returns the set of names.
func NewNames(names ...string) Names {
	n := Names{known: make(map[string]struct{}, len(names))}
	for _, s := range names {
		n.known[s] = struct{}{}
	}
	return n
}

// Label returns name if it is configured and Other if it is not, so that the
// number of series has a bound whatever callers send.
func (n Names) Label(name string) string {
	if _, ok := n.known[name]; ok {
		return name
	}
	return Other
}
