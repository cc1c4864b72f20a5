package isolate

import "golang.org/x/sys/unix"

const (
	arch           = unix.AUDIT_ARCH_X86_64
	foreignNumbers = 1 << 30 // __X32_SYSCALL_BIT
)

// deniedHere are calls that not every machine has.
var deniedHere = []uint32{
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_MKNOD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_INOTIFY_INIT,
	unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE,
	unix.SYS_ACCEPT, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT,
	unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_LINK, unix.SYS_SYMLINK, unix.SYS_CREAT,
}
