// Package sdsocket takes over the sockets on which a service manager listens for this
// process: socket activation, as in sd_listen_fds(3) and systemd.socket(5). It also
// passes them on, when the process runs its program once more.
package sdsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The variables of the protocol. LISTEN_PIDFDID, of systemd 259, says the same as
// LISTEN_PID, and is right even when a process id is reused. This package passes it on
// and does not read it.
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
)

// IsAddress reports whether addr names a socket of the service manager: fd://NAME with
// its FileDescriptorName, or fd://3 with its number. No TCP address looks like this.
func IsAddress(addr string) bool { return strings.HasPrefix(addr, scheme) }

// Sockets are the sockets that this process was given. The zero value has looked for
// none yet: the first Listen does, so that a program that does not use them keeps its
// variables. All methods may be called concurrently.
type Sockets struct {
	mu      sync.Mutex // guards the fields below
	looked  bool
	err     error    // why there are none
	names   []string // of descriptor 3, 4, …
	taken   []bool   // whether Listen has returned it
	removed []string // the variables, as NAME=VALUE
}

// Listen returns a listener on the socket that addr names. The first call closes all
// sockets to child processes and removes the variables from the environment, so that
// no child takes them for its own. The listener has a descriptor of its own: when it
// closes, the service manager's socket still accepts connections, and the next process
// gets them.
//
// Listen returns an error when the service manager has given no such socket, or two of
// the name, when the socket does not accept connections, and when an earlier call has
// returned it.
func (s *Sockets) Listen(addr string) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.looked {
		s.lookLocked()
	}
	name := strings.TrimPrefix(addr, scheme)
	i, err := s.findLocked(name)
	if err == nil && s.taken[i] {
		err = errors.New("another server has it")
	}
	if err != nil {
		return nil, fmt.Errorf("socket %q of the service manager: %w", name, err)
	}
	ln, err := listener(firstFD + i)
	if err != nil {
		return nil, fmt.Errorf("socket %q of the service manager, descriptor %d: %w", name, firstFD+i, err)
	}
	s.taken[i] = true
	return ln, nil
}

// lookLocked reads and removes the variables.
func (s *Sockets) lookLocked() {
	s.looked = true
	s.names, s.err = parse(os.LookupEnv, os.Getpid())
	s.taken = make([]bool, len(s.names))
	for _, name := range []string{pidVar, countVar, namesVar, pidfdVar} {
		if value, ok := os.LookupEnv(name); ok {
			s.removed = append(s.removed, name+"="+value)
			_ = os.Unsetenv(name) // fails only for a name that cannot be set
		}
	}
	for i := range s.names {
		inherit(firstFD+i, false)
	}
}

// parse returns the names of the descriptors from 3 on.
func parse(lookup func(string) (string, bool), pid int) (names []string, err error) {
	count, ok := lookup(countVar)
	if !ok {
		return nil, fmt.Errorf("there is none: %s is not set, or an App that ran before in this process has taken all", countVar)
	}
	if owner, _ := lookup(pidVar); owner != strconv.Itoa(pid) {
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

// findLocked returns the index of the socket with that name or number.
func (s *Sockets) findLocked(name string) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n < firstFD || n >= firstFD+len(s.names) {
			return 0, fmt.Errorf("want a number from %d to %d", firstFD, firstFD+len(s.names)-1)
		}
		return n - firstFD, nil
	}
	i := slices.Index(s.names, name)
	if i < 0 {
		return 0, fmt.Errorf("it gave %s: FileDescriptorName= in the socket unit sets the name", strings.Join(s.names, ", "))
	}
	if slices.Contains(s.names[i+1:], name) {
		return 0, fmt.Errorf("two have the name: give each socket a unit with a FileDescriptorName= of its own, or use the numbers from %s%d", scheme, firstFD)
	}
	return i, nil
}

// Exec replaces the program of this process by the file of os.Executable, with the same
// arguments and environment. The sockets stay open for it, and it gets env and the
// variables of the sockets in addition. Exec returns only an error.
func (s *Sockets) Exec(env ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("run the program once more: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.names {
		inherit(firstFD+i, true)
	}
	err = syscall.Exec(self, os.Args, slices.Concat(os.Environ(), s.removed, env))
	return fmt.Errorf("run %s once more: %w", self, err)
}
