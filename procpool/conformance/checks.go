package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

func readyOnce(r *rig) error {
	if err := r.turn(r.cfg.Query); err != nil { // a second ready would come before the answer
		return err
	}
	return nil
}

func answers(r *rig) error {
	if err := r.turn(r.cfg.Query); err != nil {
		return err
	}
	// A second answer to the query would come before the answer to this health
	// check.
	return health(r)
}

func many(r *rig) error {
	for range 50 {
		if err := r.turn(r.cfg.Query); err != nil {
			return err
		}
	}
	return nil
}

func pieces(r *rig) error {
	line := fmt.Sprintf(`{"type":"query","requestId":"p1","payload":%s}`+"\n", flat(r.cfg.Query))
	for _, b := range []byte(line) {
		if err := r.write(func() error { _, err := r.conn.Write([]byte{b}); return err }); err != nil {
			return err
		}
	}
	if err := r.answer("p1"); err != nil {
		return fmt.Errorf("a query in pieces: %w", err)
	}
	both := "\n" + `{"type":"health_check"}` + "\n" + strings.Replace(line, "p1", "p2", 1)
	if err := r.write(func() error { _, err := r.conn.Write([]byte(both)); return err }); err != nil {
		return err
	}
	for healthy, answered := false, false; !healthy || !answered; {
		e, err := r.next()
		if err != nil {
			return fmt.Errorf("a health_check and a query in one write: %w", err)
		}
		healthy = healthy || e.Type == wire.HealthOK
		answered = answered || (e.Type == wire.Complete || e.Type == wire.Error) && e.RequestID == "p2"
	}
	return nil
}

func flat(payload json.RawMessage) string { return strings.ReplaceAll(string(payload), "\n", " ") }

func spelling(r *rig) error {
	const id = "é\"\\ \u2028" // the worker must return the id unescaped
	line := fmt.Sprintf(` { "later" : {"type":"shutdown"} , "payload" : %s `+
		`,"requestId":"\u00e9\"\\ \u2028","type" : "\u0071uery" } `+"\r\n", flat(r.cfg.Query))
	if err := r.write(func() error { _, err := r.conn.Write([]byte(line)); return err }); err != nil {
		return err
	}
	return r.answer(id)
}

func unknown(r *rig) error {
	if err := r.write(func() error {
		_, err := r.conn.Write([]byte(`{"type":"from_a_newer_pool","requestId":"x","payload":{}}` + "\n"))
		return err
	}); err != nil {
		return err
	}
	return r.turn(r.cfg.Query)
}

func cancelUnknown(r *rig) error {
	if err := r.write(func() error { return r.writer.Cancel("unknown") }); err != nil {
		return err
	}
	return r.turn(r.cfg.Query)
}

func large(r *rig) error {
	payload, err := json.Marshal(map[string]string{"conformance": strings.Repeat("x", 1<<20)})
	if err != nil {
		return err
	}
	return r.turn(payload)
}

func health(r *rig) error {
	if err := r.write(r.writer.HealthCheck); err != nil {
		return err
	}
	e, err := r.next()
	if err != nil {
		return fmt.Errorf("wait for health_ok: %w", err)
	}
	if e.Type != wire.HealthOK {
		return fmt.Errorf("it sent %s %q, want health_ok", e.Type, e.RequestID)
	}
	return nil
}

func shutdown(r *rig) error {
	if err := r.turn(r.cfg.Query); err != nil {
		return err
	}
	if err := r.write(func() error { return r.writer.Shutdown(true) }); err != nil {
		return err
	}
	return r.goodbye()
}

// goodbye waits for shutdown_ack as the last message, and for the process to end.
func (r *rig) goodbye() error {
	e, err := r.next()
	if err != nil {
		return fmt.Errorf("wait for shutdown_ack: %w", err)
	}
	if e.Type != wire.ShutdownAck {
		return fmt.Errorf("it sent %s %q, want shutdown_ack", e.Type, e.RequestID)
	}
	if err := r.exits(0); err != nil {
		return err
	}
	if e, err := r.next(); !errors.Is(err, errClosed) {
		return fmt.Errorf("after shutdown_ack came %s, %w", e.Type, err)
	}
	return nil
}

func eof(r *rig) error {
	r.conn.Close()
	return r.exits(-1)
}

// occupy gives the worker the slow payload.
func (r *rig) occupy() (id string, err error) {
	id, err = r.ask(r.cfg.Slow)
	if err != nil {
		return "", err
	}
	_ = r.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	line, err := r.reader.Next()
	if err == nil {
		var e wire.Envelope
		if wire.Decode(line, &e) == nil && (e.Type == wire.Complete || e.Type == wire.Error) {
			return "", fmt.Errorf("the slow payload was answered at once, by %s: it has to keep the worker busy", wire.Excerpt(line))
		}
	}
	return id, nil
}

func healthWhileBusy(r *rig) error {
	if _, err := r.occupy(); err != nil {
		return err
	}
	if err := r.write(r.writer.HealthCheck); err != nil {
		return err
	}
	for {
		e, err := r.next()
		if err != nil {
			return fmt.Errorf("wait for health_ok: %w", err)
		}
		if e.Type == wire.HealthOK {
			return nil
		}
		if e.Type != wire.Message && e.Type != wire.Session {
			return fmt.Errorf("it sent %s %q, want health_ok", e.Type, e.RequestID)
		}
	}
}

func cancel(r *rig) error {
	id, err := r.occupy()
	if err != nil {
		return err
	}
	if err := r.write(func() error { return r.writer.Cancel(id) }); err != nil {
		return err
	}
	if err := r.answer(id); err != nil {
		return err
	}
	return r.turn(r.cfg.Query)
}

// busy fills all places of the worker.
func busy(r *rig) error {
	running := map[string]bool{}
	for range max(r.offer.Concurrency, 1) {
		id, err := r.occupy()
		if err != nil {
			return err
		}
		running[id] = true
	}
	more, err := r.ask(r.cfg.Query)
	if err != nil {
		return err
	}
	for refused := false; !refused; {
		e, err := r.next()
		if err != nil {
			return fmt.Errorf("wait for the error of %q: %w", more, err)
		}
		refused = e.RequestID == more && e.Type == wire.Error
		ends := e.Type == wire.Complete || e.Type == wire.Error
		if !refused && (ends || !running[e.RequestID]) {
			return fmt.Errorf("it sent %s %q, want error %q", e.Type, e.RequestID, more)
		}
	}
	for id := range running {
		if err := r.write(func() error { return r.writer.Cancel(id) }); err != nil {
			return err
		}
		if err := r.answer(id); err != nil {
			return err
		}
	}
	return nil
}

func gracefulWhileBusy(r *rig) error {
	id, err := r.occupy()
	if err != nil {
		return err
	}
	if err := r.write(func() error { return r.writer.Shutdown(true) }); err != nil {
		return err
	}
	if err := r.write(func() error { return r.writer.Cancel(id) }); err != nil { // without the cancel it would take too long
		return err
	}
	if err := r.answer(id); err != nil {
		return err
	}
	return r.goodbye()
}

func shutdownWhileBusy(r *rig) error {
	if _, err := r.occupy(); err != nil {
		return err
	}
	if err := r.write(func() error { return r.writer.Shutdown(false) }); err != nil {
		return err
	}
	return r.exits(0)
}

func eofWhileBusy(r *rig) error {
	if _, err := r.occupy(); err != nil {
		return err
	}
	r.conn.Close()
	return r.exits(-1)
}
