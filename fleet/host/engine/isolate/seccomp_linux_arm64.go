package isolate

import "golang.org/x/sys/unix"

const (
	arch           = unix.AUDIT_ARCH_AARCH64
	foreignNumbers = 1 << 30
)

// deniedHere are calls that not every machine has.
var deniedHere = []uint32{unix.SYS_ACCEPT, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_RENAMEAT}
