package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// texts has strings that JSON parsers and encodings get wrong.
func texts(r *rig) error {
	for _, text := range []string{
		`"\u0000\u001f\u007f\u0080\uffff"`,
		`"\"\\\/\b\f\n\r\t"`,
		`"\ud83d\ude00 and 😀"`,
		`"\ud800 alone"`,
		`"é ü 漢字 \u200e\u2028\u2029"`,
		`{"\u0061":1,"a":2,"":[]}`,
		`[-0.0,1e308,123456789012345678901234567890]`,
	} {
		if err := r.turn(json.RawMessage(text)); err != nil {
			return fmt.Errorf("the payload %s: %w", text, err)
		}
	}
	return nil
}

func nested(r *rig) error {
	const depth = 9_999 // and the message around it
	if err := r.turn(json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth))); err != nil {
		return err
	}
	return r.turn(r.cfg.Query)
}

// ownLimit sends a payload that fits and that a worker cannot send back.
func ownLimit(r *rig) error {
	line := len(`{"type":"query","requestId":"c1","payload":""}` + "\n")
	payload, err := json.Marshal(strings.Repeat("x", r.limit-line))
	if err != nil {
		return err
	}
	if err := r.turn(payload); err != nil {
		return fmt.Errorf("a query of %d bytes, the limit: %w", r.limit, err)
	}
	return r.turn(r.cfg.Query)
}

func dump(r *rig) error {
	if !slices.Contains(r.offer.Capabilities, wire.CanStacks) {
		return errSkipped
	}
	if err := r.write(r.writer.Dump); err != nil {
		return err
	}
	e, err := r.next()
	if err != nil {
		return fmt.Errorf("wait for stacks: %w", err)
	}
	if e.Type != wire.Stacks {
		return fmt.Errorf("it sent %s %q, want stacks", e.Type, e.RequestID)
	}
	return nil
}

func terminate(r *rig) error {
	if err := r.turn(r.cfg.Query); err != nil {
		return err
	}
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return r.exits(-1)
}

// readsWhileItWrites reads nothing until the worker's writes block, and then sends more
// than the buffers of a socket hold.
func readsWhileItWrites(r *rig) error {
	id, err := r.ask(r.cfg.Stream)
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // the worker fills its buffers
	padding := `{"type":"from_a_newer_pool","x":"` + strings.Repeat("x", 32<<10) + `"}` + "\n"
	for range 256 {
		if err := r.write(func() error { _, err := r.conn.Write([]byte(padding)); return err }); err != nil {
			return fmt.Errorf("while it cannot write: %w", err)
		}
	}
	if err := r.write(func() error { return r.writer.Cancel(id) }); err != nil {
		return err
	}
	if err := r.answer(id); err != nil && !errors.Is(err, errClosed) {
		return err
	}
	return r.turn(r.cfg.Query)
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

// turnWithBytes sends one query with bytes and waits for its answer.
func (r *rig) turnWithBytes(data []byte) error {
	r.id++
	id := fmt.Sprintf("c%d", r.id)
	if err := r.write(func() error { return r.writer.Query(id, r.cfg.Query, data, wire.About{}) }); err != nil {
		return err
	}
	return r.answer(id)
}

// bytesAfterQuery has bytes that look like lines, and that are not text.
func bytesAfterQuery(r *rig) error {
	if !slices.Contains(r.offer.Capabilities, wire.CanBytes) {
		return errSkipped
	}
	odd := []byte("\n{\"type\":\"shutdown\",\"graceful\":false}\n\x00\xff\n\n")
	for _, data := range [][]byte{odd, {'x'}, bytes.Repeat(odd, 1<<20/len(odd)), {'\n'}} {
		if err := r.turnWithBytes(data); err != nil {
			return fmt.Errorf("a query with %d bytes: %w", len(data), err)
		}
		if err := r.turn(r.cfg.Query); err != nil {
			return fmt.Errorf("the query after %d bytes: %w", len(data), err)
		}
	}
	var line bytes.Buffer
	if err := wire.NewWriter(&line, 0).Query("p1", r.cfg.Query, odd, wire.About{}); err != nil {
		return err
	}
	for _, b := range line.Bytes() {
		if err := r.write(func() error { _, err := r.conn.Write([]byte{b}); return err }); err != nil {
			return err
		}
	}
	if err := r.answer("p1"); err != nil {
		return fmt.Errorf("a query with bytes, in pieces: %w", err)
	}
	return r.turn(r.cfg.Query)
}

// ownLimitWithBytes sends bytes that fit and that a worker cannot send back.
func ownLimitWithBytes(r *rig) error {
	if !slices.Contains(r.offer.Capabilities, wire.CanBytes) {
		return errSkipped
	}
	line := len(fmt.Sprintf(`{"type":"query","requestId":"c1","bytes":1000,"payload":%s}`+"\n", r.cfg.Query))
	if err := r.turnWithBytes(make([]byte, r.limit-line-1)); err != nil {
		return fmt.Errorf("a query that is %d bytes with those after its line, the limit: %w", r.limit, err)
	}
	return r.turn(r.cfg.Query)
}
