// Package handover is the conversation between a process and the one that it starts to
// replace it. Its version is 1:
//
//	old: lifecycle-upgrade 1 PID   PID is the process that it has started
//	new: ready                     it can serve, and accepts nothing yet
//	old: take                      the old one has given what only one process can have
//	new: taken
//	old: go                        the new one serves, and the old one drains
//
// Each line ends with a newline. The new process gets its end of the pipe as a descriptor,
// and its number in the environment. The old one ends the new one with SIGKILL when anything
// else happens. So the new one goes on when the old one has gone without a word: it has died.
package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Version is the version of the conversation.
const Version = 1

// fdVar has the number of the descriptor of the pipe.
const fdVar = "LIFECYCLE_UPGRADE"

// The words of the conversation.
const (
	Ready = "ready"
	Take  = "take"
	Taken = "taken"
	Go    = "go"

	greeting = "lifecycle-upgrade"
)

// maxLine is the length of a line, in bytes, with its newline.
const maxLine = 64

// Child is the new process, as the old one sees it. Only one goroutine may use it, except
// that Kill may be called at any time.
type Child struct {
	PID  int
	cmd  *exec.Cmd
	conn net.Conn
	in   *bufio.Reader
}

// Start runs the program with these arguments and this environment, and passes it the files
// as descriptors from 3 on. The program has the standard input and outputs of this process.
func Start(path string, args, env []string, files []*os.File) (*Child, error) {
	conn, theirs, err := pair()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to the new process: %w", err)
	}
	defer theirs.Close() // the child has a copy
	cmd := &exec.Cmd{Path: path, Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	cmd.Env = append(without(env, fdVar), fdVar+"="+strconv.Itoa(3+len(files)))
	cmd.ExtraFiles = append(files[:len(files):len(files)], theirs)
	if err := cmd.Start(); err != nil {
		_ = conn.Close() // no process has the other end
		return nil, fmt.Errorf("start the new process: %w", err)
	}
	c := &Child{PID: cmd.Process.Pid, cmd: cmd, conn: conn, in: bufio.NewReaderSize(conn, maxLine)}
	if err := c.Say(fmt.Sprintf("%s %d %d", greeting, Version, c.PID)); err != nil {
		return nil, errors.Join(err, c.End())
	}
	return c, nil
}

// Say writes one line.
func (c *Child) Say(line string) error { return say(c.conn, line) }

// Await waits for one line, which must be word, until ctx ends.
func (c *Child) Await(ctx context.Context, word string) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := c.in.ReadSlice('\n')
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("it said more than %d bytes, want %q: it may speak another version than %d",
			maxLine, word, Version)
	case err != nil:
		return fmt.Errorf("it ended before it said %q", word)
	case string(line) != word+"\n":
		return fmt.Errorf("it said %q, want %q: it may speak another version than %d",
			strings.TrimSpace(string(line)), word, Version)
	}
	return nil
}

// Kill ends the process with SIGKILL. It may be called by any goroutine and waits for nothing.
func (c *Child) Kill() { _ = c.cmd.Process.Kill() } // an error says that it has ended

// End ends the process, if it has not ended by itself, and returns how it has ended.
func (c *Child) End() error {
	c.Kill()
	_ = c.cmd.Wait() // the state has the result
	_ = c.conn.Close()
	return fmt.Errorf("process %d: %s", c.PID, c.cmd.ProcessState)
}

// Release leaves the process to itself.
func (c *Child) Release() {
	_ = c.conn.Close()
	_ = c.cmd.Process.Release() // of this process's handle
}

// Parent is the old process, as the new one sees it.
type Parent struct {
	pid  int
	conn net.Conn
	in   *bufio.Reader
}

// Join returns the process that has started this one to replace it, or nil when there is
// none. It removes the variable from the environment and closes the pipe to children.
func Join() (*Parent, error) {
	value, ok := os.LookupEnv(fdVar)
	if !ok {
		return nil, nil
	}
	_ = os.Unsetenv(fdVar) // fails only for a name that cannot be set
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, want the number of a descriptor", fdVar, value)
	}
	greeted, err := peek(fd)
	if err != nil {
		return nil, fmt.Errorf("the process that has started this one to replace it: %w", err)
	}
	if greeted != "" { // else it has died before it could say so
		version, pid, err := parse(greeted)
		if err != nil {
			return nil, err
		}
		if pid != os.Getpid() {
			return nil, nil // this is a child of the process that is meant
		}
		if version != Version {
			return nil, fmt.Errorf("the process that has started this one to replace it speaks version %d of the hand-over, "+
				"and this program speaks %d: stop that process and start this program", version, Version)
		}
	}
	old, err := peer(fd)
	if err != nil {
		return nil, fmt.Errorf("the process that has started this one to replace it: %w", err)
	}
	conn, err := connOf(fd)
	if err != nil {
		return nil, fmt.Errorf("the pipe to the process that has started this one: %w", err)
	}
	p := &Parent{pid: old, conn: conn, in: bufio.NewReaderSize(conn, maxLine)}
	_, _ = p.in.ReadSlice('\n') // the greeting, if there was one
	return p, nil
}

// parse reads the greeting.
func parse(line string) (version, pid int, err error) {
	fields := strings.Fields(line)
	if len(fields) < 3 || fields[0] != greeting || !strings.HasSuffix(line, "\n") {
		return 0, 0, fmt.Errorf("the process that has started this one to replace it says %q, want %q, a version and "+
			"a process id", line, greeting)
	}
	version, err = strconv.Atoi(fields[1])
	if err == nil {
		pid, err = strconv.Atoi(fields[2])
	}
	if err != nil {
		return 0, 0, fmt.Errorf("the process that has started this one to replace it says %q: %w", line, err)
	}
	return version, pid, nil
}

// Say writes one line. An error says that the old process has ended; Await says so too.
func (p *Parent) Say(line string) { _ = say(p.conn, line) }

// Await waits until the old process has said word, or until ctx ends. died reports that the old
// process has ended: this one goes on without it.
func (p *Parent) Await(ctx context.Context, word string) (died bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	answer, err := p.in.ReadSlice('\n')
	switch {
	case err != nil && ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, bufio.ErrBufferFull) || err == nil && string(answer) != word+"\n":
		return false, fmt.Errorf("the old process said %q, want %q", strings.TrimSpace(string(answer)), word)
	}
	if err != nil {
		return true, p.awaitEnd(ctx)
	}
	return false, nil
}

// closedWithin bounds how long awaitEnd looks for threads of a process that has ended: its id
// may belong to another one by then.
const closedWithin = time.Second

// awaitEnd waits until the old process has ended. The system closes its end of the pipe
// before that, and perhaps before its locks are free: a thread that still ends may have them.
func (p *Parent) awaitEnd(ctx context.Context) error {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	var since time.Time
	for {
		if os.Getppid() != p.pid {
			if since.IsZero() {
				since = time.Now()
			}
			if hasEnded(p.pid) || time.Since(since) > closedWithin {
				return nil
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Close ends the conversation.
func (p *Parent) Close() { _ = p.conn.Close() } // nothing is left to say

// sayWithin bounds the time for a line, which always fits into the buffer of the pipe.
const sayWithin = time.Second

func say(conn net.Conn, line string) error {
	if err := conn.SetWriteDeadline(time.Now().Add(sayWithin)); err != nil {
		return err
	}
	_, err := io.WriteString(conn, line+"\n")
	return err
}

// without returns env without the variable.
func without(env []string, name string) (out []string) {
	for _, kv := range env {
		if !strings.HasPrefix(kv, name+"=") {
			out = append(out, kv)
		}
	}
	return out
}
