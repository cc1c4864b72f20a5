// Package sdnotify reports the state of the service to the program that runs this
// process: to systemd, or another service manager that has set NOTIFY_SOCKET (the
// protocol of sd_notify(3) and sd_watchdog_enabled(3)), and to the kubelet, which
// reads the termination log.
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Env is an environment from which to read and remove the variables.
type Env struct {
	Lookup func(string) (string, bool)
	Unset  func(string) error
}

// The variables of the protocol.
const (
	socketVar      = "NOTIFY_SOCKET"
	watchdogVar    = "WATCHDOG_USEC"
	watchdogPIDVar = "WATCHDOG_PID"
	storeVar       = "FDSTORE" // of systemd 254: how many sockets it keeps
)

// Socket is an open notification socket.
type Socket struct {
	conn *net.UnixConn
	// Watchdog is the time within which the service manager expects a sign of
	// life, 0 when it expects none from this process.
	Watchdog time.Duration
	// Keeps says that the service manager keeps sockets for the next process of the service.
	Keeps bool

	removed []string // the variables, as NAME=VALUE
}

// Open connects to the socket that the environment names. It removes the
// variables from the environment, even when it fails, so that neither a child nor
// another part of this process sends messages. It returns nil and no error when
// the environment names no socket. pid is this process. For invalid watchdog
// variables it returns an error together with a working Socket.
func Open(env Env, pid int) (*Socket, error) {
	name, ok := env.Lookup(socketVar)
	if !ok || name == "" {
		return nil, nil
	}
	usec, _ := env.Lookup(watchdogVar)
	owner, _ := env.Lookup(watchdogPIDVar)
	kept, _ := env.Lookup(storeVar)
	var errs []error
	var removed []string
	for _, v := range []string{socketVar, watchdogVar, watchdogPIDVar, storeVar} {
		if value, ok := env.Lookup(v); ok {
			removed = append(removed, v+"="+value)
		}
		if err := env.Unset(v); err != nil {
			errs = append(errs, fmt.Errorf("unset %s: %w", v, err))
		}
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, errors.Join(append(errs, fmt.Errorf("%s is %q, want the path of a Unix socket, or @ and an abstract name", socketVar, name))...)
	}
	// net takes a leading @ for the abstract name space, as systemd does.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return nil, errors.Join(append(errs, fmt.Errorf("connect to %s: %w", socketVar, err))...)
	}
	s := &Socket{conn: conn, removed: removed, Keeps: kept != "" && kept != "0"}
	s.Watchdog, err = watchdog(usec, owner, pid)
	return s, errors.Join(append(errs, err)...)
}

// watchdog reads the two variables of the watchdog.
func watchdog(usec, owner string, pid int) (time.Duration, error) {
	if usec == "" {
		return 0, nil
	}
	if owner != "" {
		n, err := strconv.Atoi(owner)
		if err != nil {
			return 0, fmt.Errorf("%s is %q, want a process id", watchdogPIDVar, owner)
		}
		if n != pid {
			return 0, nil // another process has to send the signs of life
		}
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(1<<63-1)/int64(time.Microsecond) {
		return 0, fmt.Errorf("%s is %q, want a positive number of microseconds", watchdogVar, usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Send sends the assignments as one message, with a copy of a file when there is one. It waits
// until deadline at most for room in the socket's buffer.
func (s *Socket) Send(deadline time.Time, file *os.File, assignments ...string) error {
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	text := []byte(strings.Join(assignments, "\n"))
	if file == nil {
		_, err := s.conn.Write(text)
		return err
	}
	return s.sendFile(text, file)
}

// Close closes the socket.
func (s *Socket) Close() error { return s.conn.Close() }

// maxStatus bounds a status, in bytes. systemctl status shows it in one line, and
// a message that is larger than the socket's buffer cannot be sent at all.
const maxStatus = 1024

// Status returns the assignment of STATUS=, which is one line of valid UTF-8. It
// cuts a long text.
func Status(s string) string {
	return "STATUS=" + text.OneLine(text.Clip(s, maxStatus))
}

// ExtendTimeout returns the assignment of EXTEND_TIMEOUT_USEC=: the next message,
// or the end of the process, comes within d.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(max(d, 0).Microseconds(), 10)
}
