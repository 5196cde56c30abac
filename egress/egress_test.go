package egress

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

func TestRefused(t *testing.T) {
	for address, want := range map[string]bool{
		"169.254.169.254": true, "169.254.0.1": true, "fe80::1": true, "fe80::1%eth0": true, "::ffff:169.254.169.254": true,
		"64:ff9b::a9fe:a9fe": true, "2002:a9fe:a9fe::1": true, "fd00:ec2::254": true, "fd20:ce::254": true,
		"100.100.100.200": true, "192.0.0.192": true, "224.0.0.1": true, "ff02::1": true,
		"127.0.0.1": false, "::1": false, "10.0.0.7": false, "192.168.1.1": false, "172.16.0.1": false, "100.64.0.1": false,
		"fd00::1": false, "2001:db8::1": false, "64:ff9b::a00:1": false, "169.253.255.255": false, "169.255.0.0": false,
	} {
		if got := Refused(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: refused %t", address, got)
		}
	}
}

// The guard comes before the connection, so that not even a handshake is sent there.
func TestGuard(t *testing.T) {
	d := net.Dialer{Control: Guard}
	_, err := d.DialContext(t.Context(), "tcp", "169.254.169.254:80")
	if refused := (*Error)(nil); !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
