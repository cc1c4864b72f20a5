package isolate

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A filter of system calls (seccomp(2)) is a program for the kernel's small machine
// (BPF). It sees the number of the call and its arguments, and no memory.

// denied are the calls that always fail with EPERM: what reaches other processes, the
// network, the machine, or memory that no limit of the process counts.
var denied = append([]uint32{
	// the network; the connection to the host is inherited
	unix.SYS_SOCKET, unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_LISTEN, unix.SYS_ACCEPT4,
	// other processes
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PROCESS_MRELEASE, unix.SYS_KCMP,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_TKILL,
	unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET, unix.SYS_SCHED_SETPARAM, unix.SYS_SCHED_SETSCHEDULER,
	unix.SYS_SCHED_SETATTR,
	unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_SETSID, unix.SYS_SETPGID,
	// other users and namespaces
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID,
	unix.SYS_SETRESGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT, unix.SYS_PERSONALITY,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_MKNODAT,
	// files, beyond what Landlock bounds: rights, owners, times and attributes, also of the host's own
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, sysSetxattrat,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, sysRemovexattrat, sysFileSetattr,
	// and what makes, moves and removes them, where there is no Landlock
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT, unix.SYS_SYMLINKAT,
	unix.SYS_TRUNCATE, unix.SYS_FALLOCATE,
	// a child writes no file, and the disks are everybody's
	unix.SYS_SYNC, unix.SYS_SYNCFS, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNC_FILE_RANGE,
	// memory that outlives the process, or that its limits do not count
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL,
	unix.SYS_SEMGET, unix.SYS_SEMCTL, unix.SYS_MSGGET, unix.SYS_MSGCTL,
	unix.SYS_MQ_OPEN, unix.SYS_MLOCK, unix.SYS_MLOCK2, unix.SYS_MLOCKALL,
	// the kernel's own machinery, where most of its faults were found
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP,
	unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_FANOTIFY_INIT, unix.SYS_INOTIFY_INIT1,
	// the machine
	unix.SYS_REBOOT, unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE,
	unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_SYSLOG, unix.SYS_QUOTACTL, unix.SYS_VHANGUP,
	unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME,
}, deniedHere...)

// The numbers of calls that the package unix does not have. They are the same on every machine.
const (
	sysSetxattrat    = 463
	sysRemovexattrat = 466
	sysFileSetattr   = 469
)

// Requests of ioctl(2) that it does not have either: asm-generic/ioctls.h.
const (
	fionread = 0x541b
	fionbio  = 0x5421
	fionclex = 0x5450
	fioclex  = 0x5451
)

// Offsets in struct seccomp_data. Both machines are little-endian, so the low half of
// an argument comes first.
const (
	offNumber = 0
	offArch   = 4
)

func offArg(n uint32) uint32 { return 16 + 8*n }

var errNoFilter = errors.New("there is no filter for this machine")

// seccomp installs the filter for the calling thread.
func seccomp() error {
	if arch == 0 {
		return errNoFilter
	}
	return install(filter(uint32(os.Getpid())))
}

// filter returns the program for a process with this id, which execve(2) does not
// change.
func filter(pid uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atMost = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		set    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret    = unix.BPF_RET | unix.BPF_K
		allow  = unix.SECCOMP_RET_ALLOW
		refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
		none   = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
		kill   = unix.SECCOMP_RET_KILL_PROCESS
	)
	var p []unix.SockFilter
	add := func(code uint16, k uint32, yes, no uint8) {
		p = append(p, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
	}
	add(load, offArch, 0, 0)
	add(equal, arch, 1, 0)
	add(ret, kill, 0, 0) // the numbers of another machine mean other calls
	add(load, offNumber, 0, 0)
	add(atMost, foreignNumbers, 0, 1) // of the x32 machine
	add(ret, none, 0, 0)
	for _, number := range denied {
		add(equal, number, 0, 1)
		add(ret, refuse, 0, 0)
	}
	add(equal, unix.SYS_CLONE3, 0, 1) // its arguments are in memory; libraries fall back to clone
	add(ret, none, 0, 0)
	// A call is allowed when an argument has one of the values.
	only := func(number, arg uint32, values ...uint32) {
		add(equal, number, 0, uint8(3+len(values)))
		add(load, offArg(arg), 0, 0)
		for i, v := range values {
			add(equal, v, uint8(len(values)-i), 0)
		}
		add(ret, refuse, 0, 0)
		add(ret, allow, 0, 0)
	}
	only(unix.SYS_KILL, 0, pid)
	only(unix.SYS_TGKILL, 0, pid)
	only(unix.SYS_PRLIMIT64, 0, 0, pid)
	only(unix.SYS_SCHED_SETAFFINITY, 0, 0)
	// What interpreters ask of a descriptor. Others signal any process of the user, hold up all who
	// open a file of the interpreter (a lease), or change its attributes.
	only(unix.SYS_FCNTL, 1, unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL,
		unix.F_SETFL, unix.F_GETLK, unix.F_SETLK, unix.F_SETLKW, unix.F_GETPIPE_SZ)
	only(unix.SYS_IOCTL, 1, unix.TCGETS, unix.TCGETS2, unix.TIOCGWINSZ, fionread, fionbio, fioclex, fionclex)
	// A thread, and no process.
	add(equal, unix.SYS_CLONE, 0, 4)
	add(load, offArg(0), 0, 0)
	add(set, unix.CLONE_THREAD, 1, 0)
	add(ret, refuse, 0, 0)
	add(ret, allow, 0, 0)
	add(ret, allow, 0, 0)
	return p
}
