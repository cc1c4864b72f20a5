package conformance

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// rig is the pool, as one worker sees it. A method that finds something wrong ends the check,
// as testing.T.Fatal does.
type rig struct {
	cfg     Config
	process *worker.Process
	conn    patient
	reader  *wire.Reader
	writer  *wire.Writer
	step    string // of the check, for errors
	id      int
	limit   int // of a line
	offer   wire.Offer
}

// patient is a connection whose writes have the time of one step.
type patient struct {
	net.Conn
	timeout time.Duration
}

func (c patient) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
	return c.Conn.Write(p)
}

var (
	errSkipped = errors.New("it does not announce that")
	errClosed  = errors.New("it closed its connection")
)

// failure is what fail panics with.
type failure struct{ error }

func (r *rig) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if r.step != "" {
		err = fmt.Errorf("%s: %w", r.step, err)
	}
	panic(failure{err})
}

// run makes one check, and returns what is wrong.
func (r *rig) run(l *net.UnixListener, c check) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.error
		default:
			panic(v)
		}
	}()
	r.accept(l)
	defer r.conn.Close()
	announced := map[need]string{dumps: wire.CanStacks, takes: wire.CanBytes}
	if capability, is := announced[c.needs]; is && !slices.Contains(r.offer.Capabilities, capability) {
		return errSkipped
	}
	c.run(r)
	return nil
}

func (r *rig) accept(l *net.UnixListener) {
	arrived := make(chan error, 1)
	_ = l.SetDeadline(time.Now().Add(r.cfg.Timeout))
	go func() {
		conn, err := l.AcceptUnix()
		r.conn = patient{conn, r.cfg.Timeout}
		arrived <- err
	}()
	var err error
	select {
	case err = <-arrived:
	case <-r.process.Done():
		l.Close()
		if err = <-arrived; err != nil {
			r.fail("the process has ended before it connected (%s); "+
				"it has to connect to the unix socket whose path is in %s", r.ended(), wire.EnvSocket)
		}
	}
	if err != nil {
		r.fail("it has not connected within %v; "+
			"it has to connect to the unix socket whose path is in %s", r.cfg.Timeout, wire.EnvSocket)
	}
	r.reader, r.writer = wire.NewReader(r.conn, r.limit), wire.NewWriter(r.conn, r.limit)
	e := r.next(`{"type":"ready"}`)
	if e.Type != wire.Ready {
		r.fail(`its first message is %q, want {"type":"ready"}`, e.Type)
	}
	r.offer = e.Offer
}

func (r *rig) ended() string {
	if exit := r.process.State().Exit; exit != nil {
		if exit.Signal != "" {
			return exit.Signal
		}
		return fmt.Sprintf("exit code %d", exit.Code)
	}
	return "it runs"
}

// next returns the worker's next message, which is to be what the check waits for.
func (r *rig) next(what string) wire.Envelope {
	e, err := r.read()
	if err != nil {
		r.fail("wait for %s: %w", what, err)
	}
	return e
}

// read returns the worker's next message. It must fit its schema and be one that
// workers send.
func (r *rig) read() (wire.Envelope, error) {
	var e wire.Envelope
	_ = r.conn.SetReadDeadline(time.Now().Add(r.cfg.Timeout))
	line, err := r.reader.Next()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return e, fmt.Errorf("nothing came within %v", r.cfg.Timeout)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return e, fmt.Errorf("its last line has no newline: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET): // a reset when the worker left bytes unread
		return e, errClosed
	case err != nil:
		return e, err
	}
	if err := wire.Validate(line); err != nil {
		return e, err
	}
	if err = wire.Decode(line, &e); err == nil && e.Length > 0 {
		err = r.bytesOf(&e)
	}
	switch e.Type { //nolint:exhaustive // the others are right
	case wire.Query, wire.Cancel, wire.Shutdown, wire.HealthCheck, wire.Dump, wire.Reply:
		err = fmt.Errorf("it sent %q, which only the pool does", e.Type)
	}
	return e, err
}

// bytesOf reads the bytes that follow a message of the worker.
func (r *rig) bytesOf(e *wire.Envelope) error {
	if !slices.Contains(r.offer.Capabilities, wire.CanBytes) {
		return fmt.Errorf("its %s has %d bytes after it, and its ready does not announce the capability %q",
			e.Type, e.Length, wire.CanBytes)
	}
	_, err := r.reader.Bytes(e.Length, nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("its %s says that %d bytes follow, with a newline after them, and they have not come within %v",
			e.Type, e.Length, r.cfg.Timeout)
	}
	return err
}

// expect waits for a message of a type.
func (r *rig) expect(t wire.Type) {
	if e := r.next(string(t)); e.Type != t {
		r.fail("it sent %s %q, want %s", e.Type, e.RequestID, t)
	}
}

// sent takes the result of a write.
func (r *rig) sent(err error) {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = errClosed
	}
	if err != nil {
		r.fail("it does not take messages: %w", err)
	}
}

// raw writes text as it is.
func (r *rig) raw(text string) {
	_, err := r.conn.Write([]byte(text))
	r.sent(err)
}

// pieces writes text one byte at a time.
func (r *rig) pieces(text string) {
	for i := range len(text) {
		r.raw(text[i : i+1])
	}
}

// ask sends a query under a new id.
func (r *rig) ask(payload, data []byte) (id string) {
	r.id++
	id = fmt.Sprintf("c%d", r.id)
	r.sent(r.writer.Query(id, payload, data, wire.About{}))
	return id
}

// answer waits for the end of a query. Its session and messages may come first.
func (r *rig) answer(id string) {
	for {
		e := r.next(fmt.Sprintf("the complete or error of %q", id))
		switch e.Type { //nolint:exhaustive // anything else is wrong
		case wire.Session, wire.Message, wire.Complete, wire.Error:
			if e.RequestID != id {
				r.fail("it sent a %s with requestId %q, want %q", e.Type, e.RequestID, id)
			}
		default:
			r.fail("it sent %s while %q was waited for", e.Type, id)
		}
		if isEnd(&e) {
			return
		}
	}
}

func isEnd(e *wire.Envelope) bool { return e.Type == wire.Complete || e.Type == wire.Error }

// turn sends one query and waits for its answer.
func (r *rig) turn(payload, data []byte) { r.answer(r.ask(payload, data)) }

// turn sends the worker one query, and waits for its answer.
func turn(r *rig) { r.turn(r.cfg.Query, nil) }

// exits waits for the end of the process.
func (r *rig) exits(code int) {
	select {
	case <-r.process.Done():
	case <-time.After(r.cfg.Timeout):
		r.fail("the process still runs after %v", r.cfg.Timeout)
	}
	if exit := r.process.State().Exit; code >= 0 && (exit == nil || exit.Code != code) {
		r.fail("the process ended with %s, want exit code %d", r.ended(), code)
	}
}
