package dockertest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	startPatience = time.Minute
	stopPatience  = time.Minute
)

// Engine is a dockerd that this process started. Its methods are not for
// concurrent use.
type Engine struct {
	dir    string
	cgroup string // its path below the root of every hierarchy
	args   []string
	dockerd
}

// dockerd is one run of the engine.
type dockerd struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when Wait has returned
}

// Start starts an engine, with further arguments for dockerd. The error wraps
// [ErrUnavailable] where no engine can run.
func Start(args ...string) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: it needs root", ErrUnavailable)
	}
	for _, program := range []string{"docker", "dockerd", "containerd", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: there is no %s in PATH: install docker.io", ErrUnavailable, program)
		}
	}
	dir, err := os.MkdirTemp("", "dockertest") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	e := &Engine{dir: dir, cgroup: "lifecycle-" + filepath.Base(dir), args: args}
	if err := os.WriteFile(e.path("daemon.json"), []byte("{}"), 0o600); err != nil { // replaces the machine's own configuration
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := e.Again(); err != nil {
		return nil, errors.Join(err, fmt.Errorf("its log ends with\n%s", e.logTail()), e.Close())
	}
	return e, nil
}

func (e *Engine) path(name string) string { return filepath.Join(e.dir, name) }
func (e *Engine) socket() string          { return e.path("docker.sock") }

// Again starts the engine again after [Engine.Shutdown] or [Engine.Kill], with
// the same data.
func (e *Engine) Again() error {
	if len(e.named("/exec/containerd/containerd.toml")) == 0 {
		// A containerd that has ended but was not reaped yet looks alive.
		_ = os.Remove(e.path("exec/containerd/containerd.pid"))
	}
	log, err := os.OpenFile(e.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("dockerd", append([]string{
		"--config-file", e.path("daemon.json"), "--data-root", e.path("data"), "--exec-root", e.path("exec"),
		"--host", "unix://" + e.socket(), "--pidfile", e.path("pid"), "--cgroup-parent", "/" + e.cgroup,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs", "--shutdown-timeout=5",
	}, e.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	ended, started := make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal depends on this thread
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	e.dockerd = dockerd{cmd, ended}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	return e.ready(ctx, ended)
}

// Shutdown ends the engine as a service manager does. It stops its containers,
// unless it was started with --live-restore.
func (e *Engine) Shutdown() error { return e.signal(syscall.SIGTERM) }

// Kill ends the engine with SIGKILL; its containers run on. Kill returns once the
// engine's containerd has ended too.
func (e *Engine) Kill() error {
	if err := e.signal(syscall.SIGKILL); err != nil {
		return err
	}
	for end := time.Now().Add(stopPatience); len(e.named("/exec/containerd/containerd.toml")) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("containerd did not end in %v after dockerd was killed", stopPatience)
		}
	}
	return nil
}

// Freeze stops the engine with SIGSTOP: the kernel accepts connections, and the
// engine does not answer.
func (e *Engine) Freeze() error { return e.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw ends a freeze.
func (e *Engine) Thaw() error { return e.cmd.Process.Signal(syscall.SIGCONT) }

func (e *Engine) signal(s syscall.Signal) error {
	if e.cmd == nil {
		return nil
	}
	_ = e.cmd.Process.Signal(s) // it may have ended
	_ = e.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-e.ended:
		return nil
	case <-time.After(stopPatience):
		return fmt.Errorf("dockerd did not end in %v after %v", stopPatience, s)
	}
}

// Close ends the engine and all its processes, and removes its data. It returns
// an error when containers still run, because the test has lost them.
func (e *Engine) Close() error {
	err := e.Shutdown()
	if e.cmd != nil && err != nil {
		_ = e.Kill()
	}
	if left := e.processes(); len(left) > 0 {
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		err = errors.Join(err, fmt.Errorf("%d processes of containers were left", len(left)))
	}
	for _, pid := range e.named("/") { // the shims of an engine that was killed, and its containerd
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	e.unmount()
	for _, dir := range e.cgroups() {
		_ = os.Remove(dir)
	}
	return errors.Join(err, os.RemoveAll(e.dir))
}

// cgroups lists the cgroups of the engine's containers, inner ones first.
func (e *Engine) cgroups() (dirs []string) {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + e.cgroup)
	for _, root := range append(roots, "/sys/fs/cgroup/"+e.cgroup) {
		var below []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				below = append([]string{path}, below...)
			}
			return nil
		})
		dirs = append(dirs, below...)
	}
	return dirs
}

// processes lists the processes in containers of the engine.
func (e *Engine) processes() (pids []int) {
	seen := make(map[int]bool)
	for _, dir := range e.cgroups() {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for field := range strings.FieldsSeq(string(text)) {
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// named lists the processes that name a path below the engine's folder on their
// command line.
func (e *Engine) named(below string) (pids []int) {
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range entries {
		text, _ := os.ReadFile(name)
		var pid int
		if _, err := fmt.Sscanf(name, "/proc/%d/cmdline", &pid); err == nil && pid != os.Getpid() && strings.Contains(string(text), e.dir+below) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// unmount removes the engine's mounts below its folder, inner ones first.
func (e *Engine) unmount() {
	text, _ := os.ReadFile("/proc/self/mounts")
	var points []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], e.dir+"/") {
			points = append([]string{fields[1]}, points...)
		}
	}
	for _, point := range points {
		_ = syscall.Unmount(point, syscall.MNT_DETACH)
	}
}

func (e *Engine) logTail() string {
	text, _ := os.ReadFile(e.path("log"))
	return string(text[max(0, len(text)-4000):])
}
