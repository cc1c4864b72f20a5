// Package sdsocket holds the sockets on which this process listens: those that a service
// manager has opened for it (socket activation, sd_listen_fds(3) and systemd.socket(5)),
// those that the process before it has handed over, and those that it opens itself. All
// of them can be handed over to the process that comes next.
package sdsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The variables of the protocol. LISTEN_PIDFDID, of systemd 259, says the same as
// LISTEN_PID, and is right even when a process id is reused. This package removes it and
// does not read it.
const (
	pidVar   = "LISTEN_PID"
	countVar = "LISTEN_FDS"
	namesVar = "LISTEN_FDNAMES"
	pidfdVar = "LISTEN_PIDFDID"
)

const (
	scheme   = "fd://"
	firstFD  = 3       // SD_LISTEN_FDS_START
	maxFDs   = 1 << 16 // more are a typing error
	nameless = "unknown"

	// ownPrefix begins the name of a socket that a process like this one has opened. The
	// network and the address that it was opened for follow.
	ownPrefix = "lifecycle="
)

// IsAddress reports whether addr names a socket of the service manager: fd://NAME with
// its FileDescriptorName, or fd://3 with its number. No TCP address looks like this.
func IsAddress(addr string) bool { return strings.HasPrefix(addr, scheme) }

// ownName returns the name under which a socket is handed over. A name has no colon.
func ownName(network, addr string) string {
	return ownPrefix + url.QueryEscape(network+"="+addr)
}

// Sockets are the sockets of this process. The zero value has looked for none of the
// service manager yet: the first Listen on one of them does, so that a program that does not
// use them keeps its variables. All methods may be called concurrently.
type Sockets struct {
	handed atomic.Bool // another process has all sockets too, and goes on with them

	mu     sync.Mutex // guards the fields below
	looked bool
	err    error         // why there are none
	names  []string      // of descriptor 3, 4, …
	taken  []bool        // whether Listen has returned it
	left   []string      // that were closed because nothing had taken them, and not forgotten yet
	held   []*socket     // that this process serves
	gate   chan struct{} // closed when the sockets may be used; nil when they always may
}

// socket is what a Listener and a PacketConn have in common.
type socket struct {
	owner   *Sockets
	name    string // under which it is handed over
	below   any    // the listener or packet connection of package net
	manager bool   // the service manager has opened it
	kept    bool   // the service manager keeps it for the next process
	gate    <-chan struct{}
	once    sync.Once
	closed  chan struct{}
}

// await waits until the socket may be used.
func (s *socket) await() error {
	select {
	case <-s.gate:
		return nil
	case <-s.closed:
		return net.ErrClosed
	}
}

// Shared reports whether another process uses the socket, now or next: the connections that
// wait in it are for that process, and what changes the socket changes it there too.
func (s *socket) Shared() bool {
	if s.manager || s.owner.handed.Load() {
		return true
	}
	s.owner.mu.Lock()
	kept := s.kept
	s.owner.mu.Unlock()
	if kept {
		return true
	}
	select {
	case <-s.gate:
		return false
	default:
		return true
	}
}

// close records that the socket is closed.
func (s *socket) close() {
	s.once.Do(func() { close(s.closed) })
	s.owner.mu.Lock()
	defer s.owner.mu.Unlock()
	s.owner.held = slices.DeleteFunc(s.owner.held, func(other *socket) bool { return other == s })
}

// Listener is a listening socket. In a process that takes over from another one, Accept
// waits until that one says go.
type Listener struct {
	net.Listener
	*socket
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	if err := l.await(); err != nil {
		return nil, &net.OpError{Op: "accept", Net: l.Addr().Network(), Addr: l.Addr(), Err: err}
	}
	return l.Listener.Accept()
}

// SetDeadline ends an Accept that waits for a connection at t.
func (l *Listener) SetDeadline(t time.Time) error {
	d, ok := l.Listener.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return errors.ErrUnsupported
	}
	return d.SetDeadline(t)
}

// SyscallConn returns the socket of the operating system.
func (l *Listener) SyscallConn() (syscall.RawConn, error) {
	c, ok := l.Listener.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return c.SyscallConn()
}

// Close closes the listener.
func (l *Listener) Close() error {
	l.close()
	return l.Listener.Close()
}

// PacketConn is a packet socket. In a process that takes over from another one, ReadFrom
// waits until that one says go.
type PacketConn struct {
	net.PacketConn
	*socket
}

// ReadFrom reads one packet.
func (c *PacketConn) ReadFrom(p []byte) (int, net.Addr, error) {
	if err := c.await(); err != nil {
		return 0, nil, &net.OpError{Op: "read", Net: c.LocalAddr().Network(), Addr: c.LocalAddr(), Err: err}
	}
	return c.PacketConn.ReadFrom(p)
}

// Close closes the connection.
func (c *PacketConn) Close() error {
	c.close()
	return c.PacketConn.Close()
}

// Listen returns a listener: on the socket of the service manager that addr names, on one
// that was handed over and had been opened for the same network and address, of several the
// first, or else on a new one.
//
// For a socket of the service manager, the first call closes all of them to child processes
// and removes the variables from the environment, so that no child takes them for its own.
// The listener has a descriptor of its own: when it closes, the service manager's socket
// still accepts connections, and the next process gets them. Listen returns an error when the
// service manager has given no such socket, or two of the name, when the socket does not
// accept connections, and when an earlier call has returned it.
//
// A unix socket's file that a killed process has left, on which nothing listens, is replaced.
func (s *Sockets) Listen(ctx context.Context, lc *net.ListenConfig, network, addr string) (*Listener, error) {
	ln, socket, err := open(s, network, addr, listener, func() (net.Listener, error) {
		ln, err := lc.Listen(ctx, network, addr)
		if err != nil && network == "unix" && isStale(addr) && os.Remove(addr) == nil {
			return lc.Listen(ctx, network, addr)
		}
		return ln, err
	})
	if err != nil {
		return nil, err
	}
	return &Listener{ln, socket}, nil
}

// ListenPacket is Listen for packets.
func (s *Sockets) ListenPacket(ctx context.Context, lc *net.ListenConfig, network, addr string) (*PacketConn, error) {
	conn, socket, err := open(s, network, addr, packetConn, func() (net.PacketConn, error) {
		return lc.ListenPacket(ctx, network, addr)
	})
	if err != nil {
		return nil, err
	}
	return &PacketConn{conn, socket}, nil
}

// open returns the socket that this process was given for the address, by the function given, or
// else a fresh one.
func open[T any](
	s *Sockets, network, addr string, given func(fd int) (T, error), fresh func() (T, error),
) (T, *socket, error) {
	var none T
	below, out, err := inherited(s, network, addr, given)
	if err != nil {
		return none, nil, err
	}
	if out == nil { // outside of the lock, because the address may be a name
		if below, err = fresh(); err != nil {
			return none, nil, err
		}
		out = &socket{name: ownName(network, addr)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate == nil {
		s.gate = make(chan struct{})
		close(s.gate)
	}
	out.owner, out.below, out.gate, out.closed = s, below, s.gate, make(chan struct{})
	s.held = append(s.held, out)
	return below, out, nil
}

// inherited returns a socket that this process was given. Without an error and a socket there
// is none for the address.
func inherited[T any](
	s *Sockets, network, addr string, given func(fd int) (T, error),
) (below T, out *socket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isManagers := IsAddress(addr)
	if !s.looked && strings.Contains(os.Getenv(namesVar), ownPrefix) {
		s.lookLocked(os.Getpid()) // the service manager has kept sockets of the process before
	}
	what, name := "socket handed over for "+addr, ownName(network, addr)
	i := s.freeLocked(name)
	if strings.HasPrefix(network, "unix") && !hasFile(addr) {
		i = -1 // the program removed its file: no client can reach it
	}
	if isManagers {
		if !s.looked {
			s.lookLocked(os.Getpid())
		}
		name = strings.TrimPrefix(addr, scheme)
		what = fmt.Sprintf("socket %q of the service manager", name)
		if i, err = s.findLocked(name); err == nil && s.taken[i] {
			err = errors.New("another server has it")
		}
		if err != nil {
			return below, nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	if i < 0 {
		return below, nil, nil
	}
	if below, err = given(firstFD + i); err != nil {
		return below, nil, fmt.Errorf("%s, descriptor %d: %w", what, firstFD+i, err)
	}
	s.taken[i] = true
	if !isManagers {
		closeFD(firstFD + i) // below has a copy
	}
	return below, &socket{name: name, manager: isManagers}, nil
}

// hasFile reports whether the file of a unix socket exists. The address of an abstract one
// begins with @ or a zero byte, and has none.
func hasFile(addr string) bool {
	if addr == "" || addr[0] == '@' || addr[0] == 0 {
		return true
	}
	_, err := os.Lstat(addr)
	return err == nil
}

// isStale reports whether the file of a unix socket is left from a process that was killed:
// nothing listens on it.
func isStale(addr string) bool {
	info, err := os.Lstat(addr)
	if err != nil || info.Mode().Type() != os.ModeSocket {
		return false
	}
	conn, err := net.Dial("unix", addr)
	if err == nil {
		_ = conn.Close() // a process serves there
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// freeLocked returns the first socket of that name that Listen has not returned, or -1.
func (s *Sockets) freeLocked(name string) int {
	for i := range s.names {
		if s.names[i] == name && !s.taken[i] {
			return i
		}
	}
	return -1
}

// Inherit takes the sockets that the process before this one has handed over. They may be
// used when Go was called.
func (s *Sockets) Inherit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = make(chan struct{})
	if _, any := os.LookupEnv(countVar); !any {
		s.looked, s.err = true, fmt.Errorf("there is none: %s is not set", countVar)
		return nil
	}
	s.lookLocked(0)
	return s.err
}

// Go lets a process that has taken over use its sockets, and makes it remove the files of
// its unix sockets when it closes them. It closes the sockets that were handed over and that
// nothing has taken, and returns the addresses for which they had been opened.
func (s *Sockets) Go() (left []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLeftLocked()
	for _, name := range s.left {
		addr, _ := url.QueryUnescape(strings.TrimPrefix(name, ownPrefix))
		left = append(left, addr)
	}
	s.unlinkLocked(true)
	close(s.gate)
	return left
}

// closeLeftLocked closes the sockets of the process before that nothing has taken, and adds their
// names to left.
func (s *Sockets) closeLeftLocked() {
	for i, name := range s.names {
		if !s.taken[i] && strings.HasPrefix(name, ownPrefix) {
			s.left, s.taken[i] = append(s.left, name), true
			closeFD(firstFD + i)
		}
	}
}

// Keep calls keep with a copy of each socket that this process has opened, for a service manager
// that keeps it for the next process, whatever ends this one. The sockets are shared from then
// on, and the files of unix sockets stay. keep closes the file. Before that Keep calls forget with
// the name of each socket that was kept and that nothing has taken, and closes it.
func (s *Sockets) Keep(keep func(name string, copied *os.File), forget func(name string)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closeLeftLocked()
	for _, name := range s.left {
		forget(name)
	}
	s.left = nil
	var errs []error
	for _, h := range s.held {
		if h.manager {
			continue
		}
		copied, err := Copy(h.below)
		if err != nil {
			errs = append(errs, fmt.Errorf("copy the socket %s: %w", h.name, err))
			continue
		}
		h.kept = true
		keep(h.name, copied)
	}
	s.unlinkLocked(true)
	return errors.Join(errs...)
}

// HandOver says that another process goes on with all sockets.
func (s *Sockets) HandOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handed.Store(true)
	s.unlinkLocked(false)
}

// unlinkLocked says whether Close removes the files of unix sockets.
func (s *Sockets) unlinkLocked(yes bool) {
	for _, h := range s.held {
		if ln, ok := h.below.(*net.UnixListener); ok && !h.manager {
			ln.SetUnlinkOnClose(yes && !h.kept)
		}
	}
}

// Files returns copies of all sockets that this process holds, and of those of its service
// manager, with the names under which Inherit and Listen find them. The caller closes the
// files.
func (s *Sockets) Files() (files []*os.File, names []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, any := os.LookupEnv(countVar); any && !s.looked {
		s.lookLocked(os.Getpid())
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close() // a copy
			}
		}
	}()
	add := func(name string, copied *os.File, err error) error {
		if err != nil {
			return fmt.Errorf("copy the socket %s: %w", name, err)
		}
		files, names = append(files, copied), append(names, name)
		return nil
	}
	for i, name := range s.names {
		if strings.HasPrefix(name, ownPrefix) {
			continue // Listen has taken it, or Go has closed it
		}
		copied, err := copyFD(firstFD + i)
		if err := add(name, copied, err); err != nil {
			return files, nil, err
		}
	}
	for _, h := range s.held {
		if h.manager {
			continue
		}
		copied, err := Copy(h.below)
		if err := add(h.name, copied, err); err != nil {
			return files, nil, err
		}
	}
	return files, names, nil
}

// Has reports whether one of the sockets listens at this address.
func (s *Sockets) Has(addr net.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.held, func(h *socket) bool {
		ln, ok := h.below.(net.Listener)
		return ok && ln.Addr().Network() == addr.Network() && ln.Addr().String() == addr.String()
	})
}

// Environ returns env without the variables of the protocol, and with those that give these
// sockets to a process. LISTEN_PID is not among them, because nothing knows the id of a
// process before it starts: that process has another way to tell that it is meant.
func Environ(env, names []string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{pidVar, countVar, namesVar, pidfdVar}, name)
	})
	if len(names) == 0 {
		return out
	}
	return append(out, countVar+"="+strconv.Itoa(len(names)), namesVar+"="+strings.Join(names, ":"))
}

// lookLocked reads and removes the variables. They must be for the process pid, unless that
// is 0.
func (s *Sockets) lookLocked(pid int) {
	s.looked = true
	s.names, s.err = parse(os.LookupEnv, pid)
	s.taken = make([]bool, len(s.names))
	for _, name := range []string{pidVar, countVar, namesVar, pidfdVar} {
		_ = os.Unsetenv(name) // fails only for a name that cannot be set
	}
	for i := range s.names {
		closeOnExec(firstFD + i)
	}
}

// parse returns the names of the descriptors from 3 on.
func parse(lookup func(string) (string, bool), pid int) (names []string, err error) {
	count, ok := lookup(countVar)
	if !ok {
		return nil, fmt.Errorf("there is none: %s is not set, or an App that ran before in this process has taken all", countVar)
	}
	if owner, _ := lookup(pidVar); pid != 0 && owner != strconv.Itoa(pid) {
		return nil, fmt.Errorf("%s is %q, and this process is %d: a program in between has to start it by exec", pidVar, owner, pid)
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > maxFDs {
		return nil, fmt.Errorf("%s is %q, want a number from 1", countVar, count)
	}
	names = slices.Repeat([]string{nameless}, n)
	if list, ok := lookup(namesVar); ok {
		given := strings.Split(list, ":")
		if len(given) != n {
			return nil, fmt.Errorf("%s is %q, and %s is %d: want as many names", namesVar, list, countVar, n)
		}
		names = given
	}
	return names, nil
}

// findLocked returns the index of the service manager's socket with that name or number.
func (s *Sockets) findLocked(name string) (int, error) {
	if s.err != nil {
		return -1, s.err
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n < firstFD || n >= firstFD+len(s.names) {
			return -1, fmt.Errorf("want a number from %d to %d", firstFD, firstFD+len(s.names)-1)
		}
		return n - firstFD, nil
	}
	i := slices.Index(s.names, name)
	if i < 0 {
		return -1, fmt.Errorf("it gave %s: FileDescriptorName= in the socket unit sets the name", strings.Join(s.names, ", "))
	}
	if slices.Contains(s.names[i+1:], name) {
		return -1, fmt.Errorf("two have the name: give each socket a unit with a FileDescriptorName= of its own, or use the numbers from %s%d", scheme, firstFD)
	}
	return i, nil
}
