package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
)

// A program with listeners accepts on sockets that this process keeps. So the sockets never
// close between two instances: connections wait in them while none runs, and a [Supervisor]
// may start an instance before the one before has ended.

const (
	shell = "/bin/sh"

	// startListening is a script that becomes the program. The id of the program is not known
	// before it starts.
	startListening = `export LISTEN_PID=$$; exec "$0" "$@"`

	// readyPause is the pause between two calls of a check of readiness.
	readyPause = 100 * time.Millisecond
	// acceptTakes is how long a dial waits until the program accepts a connection.
	acceptTakes = time.Second
	// acceptPause is the pause between two looks at such a connection, and between two
	// connections.
	acceptPause = 5 * time.Millisecond
)

// WithListeners gives listening sockets to the program, as systemd does: they are the
// descriptors from 3 on, before the ExtraFiles of the command, and LISTEN_FDS, LISTEN_FDNAMES
// and LISTEN_PID say so (sd_listen_fds(3)). The program accepts on its own copies. This process
// must not accept on the listeners, and keeps them open as long as another instance may follow.
//
// A [Supervisor] replaces such a process by overlap: see [Supervisor.RestartChild].
//
// A listener is one of package net, or of App.Listen. Start returns an error for one without a
// descriptor, such as that of package tls. The program starts by /bin/sh, which replaces itself
// by it, because LISTEN_PID is its own process id. The shell passes on no variable whose name has
// other characters than letters, digits and underscores. Start returns an error for a program that
// is not there or is not executable; one that the kernel refuses for another reason ends at once with
// 126 or 127. A script needs a #! line: some shells run one without it as themselves. It needs Linux.
func WithListeners(listeners ...net.Listener) ProcessOption {
	return func(p *Process) { p.listeners = append(p.listeners, listeners...) }
}

// WithReady keeps the worker Starting until check returns nil. The worker calls it when the
// program has started, and again 100 ms after each error; the Reason of the State has the last
// one. The StartTimeout of a [Spec] bounds the time for that. A program that ends before it is
// ready has failed, with [ErrStartCondition] when it exits with 0.
//
// check has to return when ctx ends. To ask a program with listeners, it dials by
// [Process.DialContext]: another instance may accept on the same sockets.
func WithReady(check func(ctx context.Context, p *Process) error) ProcessOption {
	return func(p *Process) {
		if check == nil {
			p.refused = errors.New("WithReady: the check is nil")
		}
		p.ready = check
	}
}

// DialContext connects to address. On the port of one of the process's TCP listeners it returns
// a connection that a process of its group has accepted, or one below it, and dials again while
// another instance accepts. It returns an error when the program has ended, or none of its processes
// has accepted for a second. Without CAP_SYS_PTRACE it cannot see what a program that has changed its
// user accepts: then each connection counts as the program's. To other addresses, and before Start,
// it dials as package net does. It may be called concurrently.
func (p *Process) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	patience, cancel := context.WithTimeout(ctx, acceptTakes)
	defer cancel()
	for {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil || p.PID() == 0 || !p.listensOn(conn.RemoteAddr()) {
			return conn, err
		}
		if p.hasAccepted(patience, conn) {
			return conn, nil
		}
		_ = conn.Close() // nothing was sent
		if p.exited.HasSignaled() || !sleep(patience, acceptPause) {
			return nil, fmt.Errorf("dial %s: %s has not accepted a connection", address, p.Name())
		}
	}
}

// listensOn reports whether addr has the port of one of the listeners.
func (p *Process) listensOn(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && slices.ContainsFunc(p.listeners, func(ln net.Listener) bool {
		own, ok := ln.Addr().(*net.TCPAddr)
		return ok && own.Port == tcp.Port
	})
}

// hasAccepted waits until a process has accepted conn, and reports whether it is one of the
// program.
func (p *Process) hasAccepted(ctx context.Context, conn net.Conn) bool {
	for {
		if sockets := acceptedSockets(conn); len(sockets) > 0 {
			return programHas(p.PID(), sockets)
		}
		if p.exited.HasSignaled() || !sleep(ctx, acceptPause) {
			return false
		}
	}
}

// sleep returns false when ctx ends before the time is over.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// overlaps reports whether another instance may run beside this one.
func (p *Process) overlaps() bool { return len(p.listeners) > 0 }

// passListeners gives the listeners to the command. The caller closes the files once the
// program has started.
func (p *Process) passListeners() (files []*os.File, err error) {
	if len(p.listeners) == 0 {
		return nil, nil
	}
	for i, ln := range p.listeners {
		file, err := sdsocket.Copy(ln)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("listener %d: %w", i+1, err)
		}
		files = append(files, file)
	}
	cmd := p.cmd
	if err := listeningCommand(cmd); err != nil {
		closeAll(files)
		return nil, err
	}
	cmd.ExtraFiles = append(slices.Clip(files), cmd.ExtraFiles...)
	names := slices.Repeat([]string{"unknown"}, len(files)) // as systemd calls a socket without a name
	cmd.Env = sdsocket.Environ(cmd.Env, names)
	return files, nil
}

// listeningCommand makes cmd start the shell that becomes its program.
func listeningCommand(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	path := cmd.Path // of cmd.Dir
	if !filepath.IsAbs(path) {
		if path = filepath.Join(cmd.Dir, path); !filepath.IsAbs(path) {
			path = "." + string(filepath.Separator) + path
		}
	}
	if _, err := exec.LookPath(path); err != nil { // a program that the shell cannot start is an exit status only
		return err
	}
	args := []string{"sh", "-c", startListening, cmd.Path}
	if len(cmd.Args) > 1 {
		args = append(args, cmd.Args[1:]...)
	}
	cmd.Path, cmd.Args = shell, args
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a copy of a socket
	}
}

// awaitReady makes the worker Running when its check of readiness succeeds, until ctx ends.
func (p *Process) awaitReady(ctx context.Context) {
	for {
		err := call.Do(p.Name(), func() error { return p.ready(ctx, p) })
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			p.isReady.Store(true)
			p.markRunning(p.bounds.lacks())
			return
		}
		p.setReason("it is not ready: " + err.Error())
		if !sleep(ctx, readyPause) {
			return
		}
	}
}
