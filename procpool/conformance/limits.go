package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

func readyOld(r *rig) error {
	if r.offer.Version > 1 {
		return fmt.Errorf("its ready has version %d, and %s does not say that the pool speaks it", r.offer.Version, wire.EnvVersion)
	}
	return r.turn(r.cfg.Query)
}

// texts has strings that JSON parsers and encodings get wrong.
func texts(r *rig) error {
	for _, text := range []string{
		`"\u0000\u001f\u007f\u0080\uffff"`, `"\"\\\/\b\f\n\r\t"`, `"\ud83d\ude00 and 😀"`, `"\ud800 alone"`, `"é ü 漢字 \u200e\u2028\u2029"`,
		`{"\u0061":1,"a":2,"":[]}`, `[-0.0,1e308,123456789012345678901234567890]`,
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
