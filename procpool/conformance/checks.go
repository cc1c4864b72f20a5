package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

func answers(r *rig) {
	turn(r)
	health(r) // a second answer to the query would come before the answer to this health check
}

func many(r *rig) {
	for range 50 {
		turn(r)
	}
}

func pieces(r *rig) {
	r.step = "a query in pieces"
	line := fmt.Sprintf(`{"type":"query","requestId":"p1","payload":%s}`+"\n", flat(r.cfg.Query))
	r.pieces(line)
	r.answer("p1")
	r.step = "a health_check and a query in one write"
	r.raw("\n" + `{"type":"health_check"}` + "\n" + strings.Replace(line, "p1", "p2", 1))
	for healthy, answered := false, false; !healthy || !answered; {
		e := r.next("both answers")
		healthy = healthy || e.Type == wire.HealthOK
		answered = answered || isEnd(&e) && e.RequestID == "p2"
	}
}

func flat(payload json.RawMessage) string { return strings.ReplaceAll(string(payload), "\n", " ") }

func spelling(r *rig) {
	r.raw(fmt.Sprintf(` { "later" : {"type":"shutdown"} , "payload" : %s `+
		`,"requestId":"\u00e9\"\\ \u2028","type" : "\u0071uery" } `+"\r\n", flat(r.cfg.Query)))
	r.answer("é\"\\ \u2028") // the worker must return the id unescaped
}

func unknown(r *rig) {
	r.raw(`{"type":"from_a_newer_pool","requestId":"x","payload":{}}` + "\n")
	turn(r)
}

func cancelUnknown(r *rig) {
	r.sent(r.writer.Cancel("unknown"))
	turn(r)
}

func large(r *rig) { r.turn([]byte(`{"conformance":"`+strings.Repeat("x", 1<<20)+`"}`), nil) }

// texts has strings that JSON parsers and encodings get wrong.
func texts(r *rig) {
	for _, text := range []string{
		`"\u0000\u001f\u007f\u0080\uffff"`,
		`"\"\\\/\b\f\n\r\t"`,
		`"\ud83d\ude00 and 😀"`,
		`"\ud800 alone"`,
		`"é ü 漢字 \u200e\u2028\u2029"`,
		`{"\u0061":1,"a":2,"":[]}`,
		`[-0.0,1e308,123456789012345678901234567890]`,
	} {
		r.step = "the payload " + text
		r.turn([]byte(text), nil)
	}
}

func nested(r *rig) {
	const depth = 9_999 // and the message around it
	r.turn([]byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)), nil)
	turn(r)
}

// ownLimit sends a payload that fits and that a worker cannot send back.
func ownLimit(r *rig) {
	line := len(`{"type":"query","requestId":"c1","payload":""}` + "\n")
	r.step = fmt.Sprintf("a query of %d bytes, the limit", r.limit)
	r.turn([]byte(`"`+strings.Repeat("x", r.limit-line)+`"`), nil)
	r.step = ""
	turn(r)
}

func health(r *rig) {
	r.sent(r.writer.HealthCheck())
	r.expect(wire.HealthOK)
}

func dump(r *rig) {
	r.sent(r.writer.Dump())
	r.expect(wire.Stacks)
}

// bytesAfterQuery has bytes that look like lines, and that are not text.
func bytesAfterQuery(r *rig) {
	odd := []byte("\n{\"type\":\"shutdown\",\"graceful\":false}\n\x00\xff\n\n")
	for _, data := range [][]byte{odd, {'x'}, bytes.Repeat(odd, 1<<20/len(odd)), {'\n'}} {
		r.step = fmt.Sprintf("a query with %d bytes", len(data))
		r.turn(r.cfg.Query, data)
		r.step = fmt.Sprintf("the query after %d bytes", len(data))
		turn(r)
	}
	r.step = "a query with bytes, in pieces"
	var line bytes.Buffer
	r.sent(wire.NewWriter(&line, 0).Query("p1", r.cfg.Query, odd, wire.About{}))
	r.pieces(line.String())
	r.answer("p1")
	r.step = ""
	turn(r)
}

// ownLimitWithBytes sends bytes that fit and that a worker cannot send back.
func ownLimitWithBytes(r *rig) {
	line := len(fmt.Sprintf(`{"type":"query","requestId":"c1","bytes":1000,"payload":%s}`+"\n", r.cfg.Query))
	r.step = fmt.Sprintf("a query that is %d bytes with those after its line, the limit", r.limit)
	r.turn(r.cfg.Query, make([]byte, r.limit-line-1))
	r.step = ""
	turn(r)
}

func shutDown(r *rig) {
	turn(r)
	r.sent(r.writer.Shutdown(true))
	r.goodbye()
}

// goodbye waits for shutdown_ack as the last message, and for the process to end.
func (r *rig) goodbye() {
	r.expect(wire.ShutdownAck)
	r.exits(0)
	if e, err := r.read(); !errors.Is(err, errClosed) {
		r.fail("after shutdown_ack came %s, %w", e.Type, err)
	}
}

func terminate(r *rig) {
	turn(r)
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		r.fail("send SIGTERM: %w", err)
	}
	r.exits(-1)
}

func eof(r *rig) {
	r.conn.Close()
	r.exits(-1)
}

// readsWhileItWrites reads nothing until the worker's writes block, and then sends more
// than the buffers of a socket hold.
func readsWhileItWrites(r *rig) {
	id := r.ask(r.cfg.Stream, nil)
	time.Sleep(500 * time.Millisecond) // the worker fills its buffers
	r.step = "while it cannot write"
	padding := `{"type":"from_a_newer_pool","x":"` + strings.Repeat("x", 32<<10) + `"}` + "\n"
	for range 256 {
		r.raw(padding)
	}
	r.step = ""
	r.sent(r.writer.Cancel(id))
	r.answer(id)
	turn(r)
}

// occupy gives the worker the slow payload.
func (r *rig) occupy() (id string) {
	id = r.ask(r.cfg.Slow, nil)
	_ = r.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if line, err := r.reader.Next(); err == nil {
		var e wire.Envelope
		if wire.Decode(line, &e) == nil && isEnd(&e) {
			r.fail("the slow payload was answered at once, by %s: it has to keep the worker busy", wire.Excerpt(line))
		}
	}
	return id
}

func healthWhileBusy(r *rig) {
	r.occupy()
	r.sent(r.writer.HealthCheck())
	for {
		e := r.next("health_ok")
		if e.Type == wire.HealthOK {
			return
		}
		if e.Type != wire.Message && e.Type != wire.Session {
			r.fail("it sent %s %q, want health_ok", e.Type, e.RequestID)
		}
	}
}

func cancelled(r *rig) {
	id := r.occupy()
	r.sent(r.writer.Cancel(id))
	r.answer(id)
	turn(r)
}

// busy fills all places of the worker.
func busy(r *rig) {
	running := map[string]bool{}
	for range max(r.offer.Concurrency, 1) {
		running[r.occupy()] = true
	}
	more := r.ask(r.cfg.Query, nil)
	for refused := false; !refused; {
		e := r.next(fmt.Sprintf("the error of %q", more))
		refused = e.RequestID == more && e.Type == wire.Error
		if !refused && (isEnd(&e) || !running[e.RequestID]) {
			r.fail("it sent %s %q, want error %q", e.Type, e.RequestID, more)
		}
	}
	for id := range running {
		r.sent(r.writer.Cancel(id))
		r.answer(id)
	}
}

func gracefulWhileBusy(r *rig) {
	id := r.occupy()
	r.sent(r.writer.Shutdown(true))
	r.sent(r.writer.Cancel(id)) // without the cancel it would take too long
	r.answer(id)
	r.goodbye()
}

func shutdownWhileBusy(r *rig) {
	r.occupy()
	r.sent(r.writer.Shutdown(false))
	r.exits(0)
}

func eofWhileBusy(r *rig) {
	r.occupy()
	r.conn.Close()
	r.exits(-1)
}
