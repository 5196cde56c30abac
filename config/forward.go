package config

import (
	"net/url"
	"strings"
	"time"

	"headgate/identity"
)

// Forward has requests that would have to wait here served by replicas that would
// start them at once. Absent: they wait, and nobody sends any here.
type Forward struct {
	// Address is the URL by which other replicas reach this one's listener for clients, without a path, such as http://10.0.0.7:8080; {replica} in it stands for this replica's name, so that all may have one file. By https the certificate is that of what listens there for it.
	Address string `yaml:"address"`
	// SecretEnv names the environment variable with the fleet's secret, 32 bytes or more, by which replicas know each other. It is the same for all.
	SecretEnv string `yaml:"secret_env"`
	// CA is a file with the authorities that may have signed the certificates of replicas with an https address; absent: the system's.
	CA string `yaml:"ca,omitempty"`
	// ConnectTimeout is how long a connection to a replica may take to be there, 10ms to 10s. A request for which there is none in time waits here.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
}

// SetDefaults suits replicas in one network.
func (f *Forward) SetDefaults() { f.ConnectTimeout = 250 * time.Millisecond }

// LeastSecret is how many bytes the fleet's secret has at least.
const LeastSecret = 32

// AddressOf is the address of a replica.
func (f *Forward) AddressOf(replica string) string {
	return strings.TrimSuffix(strings.ReplaceAll(f.Address, "{replica}", replica), "/")
}

func (f *Forward) validate(l *list, store string) {
	const at = "control.forward"
	if store == StoreMemory {
		l.bad(at, "a mapping", "nothing with store: memory, in which there is no other replica")
	}
	address := f.AddressOf("replica")
	if u, err := url.Parse(address); err == nil && u.Host != "" && u.Path != "" {
		l.bad(at+".address", identity.Redacted, "a URL without a path")
	} else {
		baseURL(l, at+".address", address, "replicas are known by secret_env")
	}
	switch {
	case f.SecretEnv == "":
		l.bad(at+".secret_env", "nothing", allowedEnv)
	case !envName(f.SecretEnv):
		l.bad(at+".secret_env", identity.Redacted, allowedEnv)
	}
	if f.CA != "" && !strings.HasPrefix(f.Address, "https://") {
		l.bad(at+".ca", f.CA, "nothing where the address is not https")
	}
	duration(l.below(at), "connect_timeout", f.ConnectTimeout, 10*time.Millisecond, 10*time.Second, false)
}
