package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"reflect"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/stderr"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// pipes copies between a program and the Stdin, Stdout and Stderr of its command.
// Package exec would do that too. But its Wait returns the program's exit only
// after the last Read and Write have returned, and those are the caller's code.
type pipes struct {
	input   *pipe
	outputs []*pipe
	stderr  stderr.Tail
}

// stderrKept is how much of a program's standard error is kept to find its last line, in bytes, and
// maxLastLine how much of that line.
const (
	stderrKept  = 4 << 10
	maxLastLine = 256
)

// pipe is one of the program's three streams, which a goroutine copies.
type pipe struct {
	stream string   // "Stdin", "Stdout", "Stderr", or both of the last two
	ours   *os.File // the worker's end
	theirs *os.File // the program's end; the worker closes it after the start
	copy   func() error
	over   fsm.Signal // copy has returned
	err    error      // of copy, once it has
}

// newPipes gives cmd a pipe in place of each stream that is not a file.
func newPipes(cmd *exec.Cmd) (*pipes, error) {
	p := &pipes{stderr: stderr.Tail{Size: stderrKept}}
	var err error
	if from := cmd.Stdin; from != nil && !isFile(from) {
		var in *pipe
		if in, err = newPipe("Stdin", true); err != nil {
			return nil, err
		}
		in.copy = func() error {
			return readError(io.Copy(in.ours, from))
		}
		p.input, cmd.Stdin = in, in.theirs
	}
	both := cmd.Stdout != nil && cmd.Stderr != nil && sameWriter(cmd.Stdout, cmd.Stderr)
	if to := cmd.Stdout; to != nil && !isFile(to) {
		stream := "Stdout"
		if both {
			stream = "Stdout and Stderr"
		}
		if cmd.Stdout, err = p.output(stream, to, both); err != nil {
			return nil, err
		}
		if both {
			cmd.Stderr = cmd.Stdout
		}
	}
	if to := cmd.Stderr; to != nil && !isFile(to) {
		if cmd.Stderr, err = p.output("Stderr", to, true); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// output adds a pipe for a stream that the program writes, and returns the
// program's end. hasErrors says that it is, or has, the standard error.
func (p *pipes) output(stream string, to io.Writer, hasErrors bool) (*os.File, error) {
	out, err := newPipe(stream, false)
	if err != nil {
		p.close()
		return nil, err
	}
	out.copy = func() error {
		all := to
		if hasErrors {
			all = io.MultiWriter(&p.stderr, to)
		}
		_, err := io.Copy(all, out.ours)
		flush(to)
		return err
	}
	p.outputs = append(p.outputs, out)
	return out.theirs, nil
}

func newPipe(stream string, input bool) (*pipe, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("a pipe for %s: %w", stream, err)
	}
	if input {
		return &pipe{stream: stream, ours: w, theirs: r}, nil
	}
	return &pipe{stream: stream, ours: r, theirs: w}, nil
}

func isFile(stream any) bool {
	_, ok := stream.(*os.File)
	return ok
}

// sameWriter reports whether the two are equal, as package exec asks before it
// gives both streams one pipe.
func sameWriter(a, b io.Writer) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// readError returns the error of a copy to the program's Stdin, nil when only the
// program has stopped reading.
func readError(_ int64, err error) error {
	if at, ok := err.(*fs.PathError); ok && at.Op == "write" && unread(at.Err) { //nolint:errorlint // package os returns it so
		return nil
	}
	return err
}

func (p *pipes) all() []*pipe {
	if p.input == nil {
		return p.outputs
	}
	return append([]*pipe{p.input}, p.outputs...)
}

// start begins the copying, once the program has started.
func (p *pipes) start(name string) {
	for _, one := range p.all() {
		_ = one.theirs.Close() // the program has its own
		call.Go(name, one.copy, func(err error) {
			one.err = err
			one.over.Signal() // before the program can see the end of the copying, and end because of it
			_ = one.ours.Close()
		})
	}
}

// close closes the pipes of a program that did not start.
func (p *pipes) close() {
	for _, one := range p.all() {
		_ = one.ours.Close() // nothing was written
		_ = one.theirs.Close()
	}
}

// endInput gives up the copying to Stdin, because the program has ended. It does
// not wait for a Read of the caller's. It returns the error of a Read that the
// program has seen as the end of its input.
func (p *pipes) endInput() error {
	if p.input == nil {
		return nil
	}
	var err error
	if p.input.over.HasSignaled() {
		err = p.input.err
	}
	_ = p.input.ours.Close() // ends a Write that is under way
	return err
}

// endOutput waits until the rest of the output was read, for at most patience. Then it
// stops reading: cut is true. It returns the first error of a Writer.
func (p *pipes) endOutput(patience time.Duration) (cut bool, err error) {
	late := time.After(patience)
	for _, out := range p.outputs {
		if !cut {
			select {
			case <-out.over.Signaled():
			case <-late:
				cut = true
			}
		}
		if out.over.HasSignaled() {
			err = cmp.Or(err, out.err)
		} else {
			_ = out.ours.Close() // ends the Read that is under way
		}
	}
	return cut, err
}

// blocked returns an error that names the streams whose Writers have not
// returned.
func (p *pipes) blocked(name string) error {
	var errs []error
	for _, out := range p.outputs {
		if !out.over.HasSignaled() {
			where := "writing its output, which its " + out.stream + " does not take"
			errs = append(errs, &AbandonedError{Name: name, Where: where})
		}
	}
	return errors.Join(errs...)
}

// withLastLine adds the last line of the standard error to the error of a program that failed.
func (p *pipes) withLastLine(err error) error {
	line := stderr.LastLine(p.stderr.String())
	if line == "" {
		return err
	}
	return fmt.Errorf("%w; last line of stderr: %s", err, text.Clip(line, maxLastLine))
}

// wait waits until the Writers have returned.
func (p *pipes) wait() {
	for _, out := range p.outputs {
		<-out.over.Signaled()
	}
}

// endStreams ends the copying of the program's streams after its exit, of which
// waited is the error. It returns the error that the worker ends with. When a
// Writer of the caller's does not return, the worker is abandoned, and gone once
// the Writer has returned.
func (p *Process) endStreams(waited, err error, killed bool) error {
	unread := p.pipes.endInput()
	cut, failed := p.pipes.endOutput(p.cmd.WaitDelay)
	if err == nil {
		err = cmp.Or(unread, failed)
	}
	if err != nil && !killed && !errors.Is(err, ErrInterrupted) {
		err = p.pipes.withLastLine(err)
	}
	p.recordEnd(err, cut)
	if killed {
		p.Kill(err)
	}
	if !cut {
		return err
	}
	_, _ = p.pipes.endOutput(time.Second) // a Read that was under way has ended, and a Write may not return
	if stuck := p.pipes.blocked(p.Name()); stuck != nil {
		if waited != nil {
			stuck = fmt.Errorf("%w; the program ended: %w", stuck, waited)
		}
		p.recordEnd(stuck, cut)
		p.abandon(stuck)
		p.pipes.wait()
	}
	return err
}
