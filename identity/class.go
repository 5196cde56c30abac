package identity

import (
	"fmt"
	"slices"
	"strings"

	"headgate/wire"
)

// Class resolves the class of one request. header is the value of its
// Headgate-Class header, "" if it has none; tier its service_tier, "" if it
// has none.
//
// An allowed header decides; else a service_tier of flex or priority, where
// the key may choose so and may use the class it stands for; else the default.
// A header that isn't allowed is a 403; tiers never are.
func (p *Principal) Class(header, tier string) (string, *wire.Error) {
	if header != "" {
		return p.byHeader(header)
	}
	if p.ByTier {
		class := ""
		switch tier {
		case "flex":
			class = p.flex
		case "priority":
			class = p.priority
		}
		if slices.Contains(p.Classes, class) {
			return class, nil
		}
	}
	return p.Default, nil
}

func (p *Principal) byHeader(header string) (string, *wire.Error) {
	// Only what could be a name is repeated in a message.
	asked := "(not a class name)"
	if ValidName(header) {
		asked = header
	}
	switch {
	case !p.ByHeader:
		return "", forbidden(fmt.Sprintf("%s: %s: this key may not choose a class; leave the header out to get %s", ClassHeader, asked, p.Default))
	case !slices.Contains(p.Classes, header):
		return "", forbidden(fmt.Sprintf("%s: %s: this key may not use that class; allowed: %s", ClassHeader, asked, strings.Join(p.Classes, ", ")))
	}
	return header, nil
}

func forbidden(message string) *wire.Error {
	err := wire.NewError(wire.CodeClassNotPermitted, "%s", message)
	err.Param = ClassHeader
	return err
}
