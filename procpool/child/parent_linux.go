package child

import "syscall"

// dieWithParent makes the kernel kill this process when its parent dies (prctl(2),
// PR_SET_PDEATHSIG). A pool asks for that when it starts a worker itself; this is for
// a worker behind a shell, whose parent the shell is. A worker also ends when its
// connection does, but only if its program returns from main.
//
// The setting belongs to a thread, and any thread of the runtime may end, so every
// thread has it. A program with cgo cannot ask for that; there the calling thread has
// it.
func dieWithParent() {
	const setParentDeathSignal = 1
	if _, _, err := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, setParentDeathSignal, uintptr(syscall.SIGKILL), 0); err != 0 {
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, setParentDeathSignal, uintptr(syscall.SIGKILL), 0)
	}
}
