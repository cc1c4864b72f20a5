package procpool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// openDir makes the folder for sockets, or checks an existing one. No other user
// may enter it: a process that can reach a socket could take a worker's place. It
// also removes sockets on which no process listens.
func openDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make the folder for sockets: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the folder for sockets: %w", err)
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("look at the folder for sockets: %w", err)
	case !info.IsDir():
		return fmt.Errorf("SocketDir %s is not a folder", dir)
	case owner(info) != os.Getuid():
		return fmt.Errorf("SocketDir %s belongs to user %d, want one of our own (%d)", dir, owner(info), os.Getuid())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("SocketDir %s has mode %04o, want 0700: others could take a worker's place",
			dir, info.Mode().Perm())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look into the folder for sockets: %w", err)
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket != 0 && strings.HasSuffix(entry.Name(), ".sock") {
			removeStale(filepath.Join(dir, entry.Name()))
		}
	}
	return nil
}

// staleAfter is how old a socket must be to be removed. Another pool may be between
// making its socket and listening on it; a connect is refused then too.
const staleAfter = 5 * time.Second

// removeStale removes a socket on which no process listens.
func removeStale(path string) {
	if info, err := os.Lstat(path); err != nil || time.Since(info.ModTime()).Abs() < staleAfter {
		return
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		conn.Close() // it belongs to a live pool
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path)
	}
}

// acceptor is the socket of one worker that has not sent ready. Several processes may
// connect: unrelated ones, a wrapper that tests the socket, the worker. The first
// process of the worker's group that sends ready is the worker; then the socket is
// closed.
type acceptor struct {
	path      string
	listener  *net.UnixListener // nil when the connection is inherited
	ours      *net.UnixConn     // the pool's end of an inherited connection, else nil
	theirs    *os.File          // the worker's end of it
	limit     int
	checkPeer func(pid, uid int) error // nil for a process of the worker's group
	refused   func(error)
	opened    chan readyConn // capacity 1
	ended     sync.WaitGroup

	mu      sync.Mutex      // held while ctx ends; guards pending
	ctx     context.Context // it ends when the socket is closed; with it end the connections that have not sent ready
	cancel  context.CancelFunc
	pending []*net.UnixConn // connections that have not sent ready, oldest first
}

// maxPending bounds the connections that have not sent ready. The oldest is closed
// to make room.
const maxPending = 16

// readyConn is the worker's connection after it sent ready.
type readyConn struct {
	conn   *net.UnixConn
	pid    int
	reader *wire.Reader
	offer  wire.Offer
	err    error // its first message was not ready; the other fields are zero
}

// newAcceptor makes the socket of the nth worker. It makes the folder again when it is
// missing: cleaners of temporary files remove empty, old folders, and this one is
// empty between two spawns.
func (p *Pool) newAcceptor(n int) (*acceptor, error) {
	if p.cfg.Inherit {
		return inheritedPair(p.cfg.MaxAnswer)
	}
	path := fmt.Sprintf("%s%06d.sock", p.prefix, n)
	d, err := listen(path, p.cfg.MaxAnswer)
	if errors.Is(err, fs.ErrNotExist) {
		if err := openDir(p.dir); err != nil {
			return nil, err
		}
		d, err = listen(path, p.cfg.MaxAnswer)
	}
	return d, err
}

func listen(path string, limit int) (*acceptor, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, the limit is %d: set a shorter SocketDir or Name",
			path, len(path), maxPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the worker: %w", err)
	}
	d := &acceptor{path: path, listener: l, limit: limit, opened: make(chan readyConn, 1)}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// open accepts connections from now on. The process must have been started.
func (d *acceptor) open(checkPeer func(pid, uid int) error, refused func(error)) {
	d.checkPeer, d.refused = checkPeer, refused
	if d.ours != nil {
		d.theirs.Close() // only the worker has it from now on
		d.awaitReady(d.ours, 0)
		return
	}
	d.ended.Go(d.accept)
}

func (d *acceptor) accept() {
	for pause := time.Millisecond; ; {
		conn, err := d.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // most likely no file descriptors; try again
			d.refused(fmt.Errorf("accept: %w", err))
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		pid, uid, err := peerOf(conn)
		if err == nil {
			err = d.checkPeer(pid, uid)
		}
		if err != nil {
			conn.Close()
			d.refused(err)
			continue
		}
		d.awaitReady(conn, pid)
	}
}

// awaitReady waits for the ready message in the background.
func (d *acceptor) awaitReady(conn *net.UnixConn, pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pending) == maxPending {
		d.pending[0].Close()
		d.pending = d.pending[1:]
	}
	d.pending = append(d.pending, conn)
	d.ended.Go(func() { d.readReady(conn, pid) })
}

// readReady waits for the ready message.
func (d *acceptor) readReady(conn *net.UnixConn, pid int) {
	stop := context.AfterFunc(d.ctx, func() { conn.Close() })
	a := readyConn{conn: conn, pid: pid, reader: wire.NewReader(conn, d.limit)}
	line, err := a.reader.Next()
	if err == nil {
		var e wire.Envelope
		err = wire.Decode(line, &e)
		a.offer = e.Offer
		if err == nil && e.Type != wire.Ready {
			err = fmt.Errorf("its first message is %s, want ready", wire.Excerpt(line))
		}
		if err == nil && e.Length > 0 {
			err = fmt.Errorf("a ready takes no bytes, and it has %d after it", e.Length)
		}
		if err != nil {
			a = readyConn{err: err}
		}
	}
	d.mu.Lock()
	i := slices.Index(d.pending, conn)
	if i >= 0 {
		d.pending = slices.Delete(d.pending, i, i+1)
	}
	// A connection that ends without a message does not count: the worker may connect
	// again. A message other than ready does, and then a.err is not nil.
	first := d.ctx.Err() == nil && i >= 0 && (err == nil || a.err != nil)
	if first {
		stop()
		d.closeLocked()
		d.opened <- a
	}
	d.mu.Unlock()
	if !first || a.err != nil {
		conn.Close()
	}
}

func (d *acceptor) closeLocked() {
	d.cancel()
	if d.listener != nil {
		d.listener.Close() // this also removes the file
	}
}

// close closes the socket, and the connection of a worker that was not taken.
func (d *acceptor) close() {
	d.mu.Lock()
	d.closeLocked()
	d.mu.Unlock()
	d.ended.Wait()
	if d.ours != nil && d.checkPeer == nil { // it was not opened
		d.ours.Close()
		d.theirs.Close()
	}
	select {
	case a := <-d.opened:
		if a.conn != nil {
			a.conn.Close()
		}
	default:
	}
}
