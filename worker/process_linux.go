package worker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// holdsZombie says that this system shows the end of a process before it is
// reaped. Until it is reaped, no other process or group gets its number.
const holdsZombie = true

// From <linux/wait.h>; package syscall does not have them.
const (
	idPID       = 1 // P_PID
	noWait      = syscall.WNOWAIT
	childKilled = 2 // CLD_KILLED: a signal ended it, without a core dump
)

func dieWithParent(attr *syscall.SysProcAttr) {
	if attr.Pdeathsig == 0 {
		attr.Pdeathsig = syscall.SIGKILL
	}
}

// starter is the thread that starts processes. The kernel sends the parent-death
// signal when the *thread* that forked dies (prctl(2)), and the runtime may end
// any thread. So starter keeps one thread for as long as there are processes. It
// forks one process at a time, as package syscall does anyway.
var starter struct {
	mu    sync.Mutex // guards everything below
	users int        // processes that run or are being started
	jobs  chan func()
	ended chan struct{}
}

// startCommand starts cmd. When it returns nil, processEnded must be called
// once the process was reaped.
func startCommand(cmd *exec.Cmd) error {
	starter.mu.Lock()
	if starter.users == 0 {
		jobs, ended := make(chan func()), make(chan struct{})
		starter.jobs, starter.ended = jobs, ended
		go func() {
			defer close(ended)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for job := range jobs {
				job()
			}
		}()
	}
	starter.users++
	jobs := starter.jobs
	starter.mu.Unlock()
	result := make(chan error, 1)
	jobs <- func() { result <- cmd.Start() }
	err := <-result
	if err != nil {
		processEnded()
	}
	return err
}

func processEnded() {
	starter.mu.Lock()
	defer starter.mu.Unlock()
	starter.users--
	if starter.users == 0 {
		close(starter.jobs)
		<-starter.ended
	}
}

// awaitExit returns when the program has ended. The program then stays a zombie
// until it is reaped.
func (p *Process) awaitExit() {
	var info siginfo
	for waitid(p.cmd.Process.Pid, &info, syscall.WEXITED|noWait) == syscall.EINTR {
	}
	p.wasKilled = info.code == childKilled
}

// siginfo is the part of siginfo_t that waitid fills in (128 bytes everywhere).
type siginfo struct {
	signo, errno, code int32
	_                  [116]byte
}

func waitid(pid int, info *siginfo, options int) syscall.Errno {
	_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idPID, uintptr(pid), uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
	return errno
}

// awaitGroup returns when the zombie is alone in its group, or force closes. It
// polls, because the kernel does not report that a group has become empty.
func (p *Process) awaitGroup(force <-chan struct{}) {
	for pause := 5 * time.Millisecond; groupLives(p.cmd.Process.Pid); pause = min(2*pause, 100*time.Millisecond) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-force:
			timer.Stop()
			return
		}
	}
}

// isStopped reports whether the kernel has stopped the program.
func (p *Process) isStopped() bool {
	s, ok := readStat(p.PID())
	return ok && (s.state == 'T' || s.state == 't')
}

// groupLives reports whether a process of the group runs, besides the leader,
// which has ended.
func groupLives(pgid int) bool {
	lives := false
	eachPID(func(pid int) bool {
		// The system call costs a twentieth of reading /proc/PID/stat.
		if got, err := syscall.Getpgid(pid); err != nil || got != pgid || pid == pgid {
			return true
		}
		s, ok := readStat(pid)
		lives = ok && s.state != 'Z' && s.state != 'X'
		return !lives
	})
	return lives
}

// procStat holds the fields of /proc/PID/stat, proc(5), that this package needs.
type procStat struct {
	pid, ppid, pgrp int
	state           byte
}

// eachPID calls visit with the number of every process until visit returns false.
// Processes may come and go meanwhile.
func eachPID(visit func(pid int) bool) {
	dir, err := os.Open("/proc")
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !visit(pid) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func readStat(pid int) (procStat, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(text)
}

// parseStat reads "1 (name) S 0 1 …". The name may contain any character,
// including parentheses.
func parseStat(text []byte) (s procStat, ok bool) {
	pid, rest, _ := bytes.Cut(text, []byte(" ("))
	end := bytes.LastIndexByte(rest, ')')
	if end < 0 {
		return s, false
	}
	fields := strings.Fields(string(rest[end+1:]))
	if len(fields) < 3 || len(fields[0]) != 1 {
		return s, false
	}
	s.state = fields[0][0]
	for _, field := range []struct {
		to   *int
		text string
	}{{&s.pid, string(pid)}, {&s.ppid, fields[1]}, {&s.pgrp, fields[2]}} {
		n, err := strconv.Atoi(field.text)
		if err != nil {
			return s, false
		}
		*field.to = n
	}
	return s, true
}

// watchOOM returns a function that reports whether the kernel has killed a
// process of the program's cgroup since then because memory ran out. Call that
// function before the program is reaped. The cgroup may have other processes. But
// when a SIGKILL that this process did not send has ended the program too, the
// answer is almost certain.
func watchOOM(cmd *exec.Cmd) func() bool {
	pid := cmd.Process.Pid
	file, before := oomKills(pid)
	return func() bool {
		if count, err := readOOM(file); err == nil && count > before {
			return true
		}
		// The program may have been moved to another cgroup since. (In v1 a
		// zombie's cgroup is the root.)
		now, count := oomKills(pid)
		return now != file && count > 0
	}
}

// oomKills returns the file that counts the kills of the process's cgroup, and
// the count.
func oomKills(pid int) (file string, count int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0
	}
	for _, file := range oomFiles(string(text)) {
		if count, err := readOOM(file); err == nil {
			return file, count
		}
	}
	return "", 0
}

// oomFiles returns the possible paths of a cgroup's counter. In a container the
// kernel reports the path of the host, while the cgroup itself is mounted at the
// root.
func oomFiles(cgroup string) []string {
	var files []string
	for line := range strings.Lines(cgroup) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		switch {
		case !ok:
		case id == "0" && controllers == "":
			files = append(files, filepath.Join("/sys/fs/cgroup", path, "memory.events"), "/sys/fs/cgroup/memory.events")
		case controllers == "memory":
			files = append(files, filepath.Join("/sys/fs/cgroup/memory", path, "memory.oom_control"), "/sys/fs/cgroup/memory/memory.oom_control")
		}
	}
	return files
}

// readOOM returns the line "oom_kill N" of memory.events (cgroup v2) or
// memory.oom_control (v1).
func readOOM(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			return strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return 0, errors.New("no oom_kill in " + file)
}
