package isolate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// raise raises the floor for the calling thread, which execve(2) makes the only one.
// It returns what is missing.
func raise(s spec) (missing []string) {
	runtime.LockOSThread()
	step := func(name string, err error) {
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", name, err))
		}
	}
	step("rlimits", rlimits())
	step("nice", unix.Setpriority(unix.PRIO_PROCESS, 0, niceness))
	step("capabilities", dropCapabilities())
	step("no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	step("landlock", landlock(append(s.Read, self())))
	step("seccomp", seccomp()) // last: it forbids what the others do
	return missing
}

func rlimits() error {
	var errs []error
	for _, l := range []struct {
		what int
		most uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_NOFILE, maxFiles},
		{unix.RLIMIT_FSIZE, 0}, // no file can be written, also without Landlock
		{unix.RLIMIT_MEMLOCK, 0},
		{unix.RLIMIT_MSGQUEUE, 0},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(l.what, &now); err != nil {
			errs = append(errs, err)
			continue
		}
		most := min(now.Max, l.most)
		errs = append(errs, unix.Setrlimit(l.what, &unix.Rlimit{Cur: most, Max: most}))
	}
	return errors.Join(errs...)
}

// dropCapabilities takes every capability from the thread and from the program that it
// will run: otherwise a program that root runs would have them again.
func dropCapabilities() error {
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		// With EINVAL the kernel does not know the capability. With EPERM the thread lacks
		// CAP_SETPCAP; it cannot gain capabilities either, because of no_new_privs.
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && err != unix.EINVAL && err != unix.EPERM {
			return err
		}
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}

// landlock lets the thread read and execute what is below read, and nothing else
// (landlock(7)). It ignores a path that does not exist.
func landlock(read []string) error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("the kernel does not have it: %w", errno)
	}
	const reads = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	const ofFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE
	attr := unix.LandlockRulesetAttr{Handled_access_fs: 1<<13 - 1} // the rights of version 1
	if abi >= 2 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	size := uintptr(8)
	if abi >= 4 {
		attr.Handled_access_net, size = unix.LANDLOCK_ACCESS_NET_BIND_TCP|unix.LANDLOCK_ACCESS_NET_CONNECT_TCP, 16
	}
	if abi >= 5 {
		attr.Handled_access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		attr.Scoped, size = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET|unix.LANDLOCK_SCOPE_SIGNAL, 24
	}
	ruleset, err := createRuleset(&attr, size)
	if err != nil {
		return err
	}
	defer unix.Close(ruleset)
	allow := func(path string, rights uint64) error {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil // what is missing needs no rule, and what is not readable gets none
		}
		defer unix.Close(fd)
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			rights &= ofFiles
			if path == "/dev/null" {
				rights |= unix.LANDLOCK_ACCESS_FS_WRITE_FILE
			}
		}
		if err := addRule(ruleset, &unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	var errs []error
	for _, path := range read {
		errs = append(errs, allow(path, reads))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// become executes the program in this thread.
func become(path string, argv, env []string) error {
	if err := syscall.Exec(path, argv, env); err != nil {
		return fmt.Errorf("execute %s: %w", path, err)
	}
	return nil
}

func self() string { return "/proc/self/exe" }

// limitData bounds the private writable memory of this process to its present size
// plus bytes.
func limitData(bytes int64) error {
	most := uint64(dataSize() + bytes*raceFactor)
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: most, Max: most})
}

// dataSize returns the private writable memory of this process, as the kernel counts
// it.
func dataSize() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err == nil {
		for line := range bytes.Lines(text) {
			if rest, ok := bytes.CutPrefix(line, []byte("VmData:")); ok {
				fields := bytes.Fields(rest)
				if n, err := strconv.ParseInt(string(fields[0]), 10, 64); err == nil {
					return n << 10
				}
			}
		}
	}
	return goMemory() + margin
}

// goMemory returns the memory that Go's runtime has mapped.
func goMemory() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
