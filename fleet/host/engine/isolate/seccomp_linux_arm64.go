package isolate

import "golang.org/x/sys/unix"

const (
	arch           = unix.AUDIT_ARCH_AARCH64
	foreignNumbers = 1 << 30
)

// deniedHere are calls that only this machine has.
var deniedHere []uint32
