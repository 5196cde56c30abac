// Package egress keeps the process from being sent to addresses that nobody meant: those
// of the link, where clouds answer with the credentials of a machine to whoever asks.
//
// URLs come from the configuration alone, so it is not clients that this is against. It is
// against names: whoever owns the DNS of an engine's host, or of a replica's, could have
// it point to 169.254.169.254 after the configuration was read, and would be sent the
// engine's key and what that address answers. So an address is looked at when it is
// dialled, after its name was resolved, each time.
//
// Private networks are not refused: that is where engines are.
package egress

import (
	"fmt"
	"net/netip"
	"syscall"
)

// metadata are addresses of clouds' metadata services beside those of the link, which all
// others use: Amazon's, Google's and Alibaba's, and Oracle's older one.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"), netip.MustParsePrefix("fd20:ce::/32"),
	netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("192.0.0.192/32"),
}

// translated are prefixes in which an IPv4 address stands in the last or in the second and
// third 16 bits of an IPv6 one.
var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// Refused tells whether an address is of the link, a metadata service's, or of many
// machines at once.
func Refused(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if b := a.As16(); nat64.Contains(a) {
		a = netip.AddrFrom4([4]byte(b[12:]))
	} else if sixTo4.Contains(a) {
		a = netip.AddrFrom4([4]byte(b[2:]))
	}
	if a.IsLinkLocalUnicast() || a.IsMulticast() {
		return true
	}
	for _, p := range metadata {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Error is an address that was not dialled.
type Error struct{ Address string }

func (e *Error) Error() string {
	return fmt.Sprintf("%s is not dialled: it is an address of the link or of a metadata service", e.Address)
}

// Guard is a net.Dialer's Control: it refuses what Refused does, before a packet is sent.
func Guard(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil || Refused(a.Addr()) {
		return &Error{address}
	}
	return nil
}
