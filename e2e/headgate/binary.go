package headgate

import "headgate/proctest"

// Binary returns the path of headgate.
var Binary = proctest.Program("./cmd/headgate")
