package config

// Console is what the web console of the admin listener shows beside what the process
// knows itself.
type Console struct {
	// Reports is a folder of past runs, as headgate bench and headgate sim write them: what is in it and in folders below, four deep, is listed in the Lab, and shown to who may read the admin listener. Absent: none is.
	Reports string `yaml:"reports,omitempty"`
}

// IsZero tells whether it shows nothing more.
func (c Console) IsZero() bool { return c == Console{} }
