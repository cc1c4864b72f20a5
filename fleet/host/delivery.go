package host

import (
	"cmp"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// delivery is a message that a runner has and has not answered, or a timer that is due.
type delivery struct {
	id     string
	topic  string
	header nats.Header
	data   []byte
	size   int       // of the message that was delivered
	seq    uint64    // in its stream; 0 for a timer
	stored time.Time // when the stream stored it
	timer  *pendingTimer

	acker    atomic.Pointer[acker] // of the newest delivery
	complete bool                  // the data of a timer are there
	redriven bool                  // it was a dead letter
	// An earlier host may have called a handler for it.
	maybeHandled bool
}

func newDelivery(m *nats.Msg, meta *nats.MsgMetadata) *delivery {
	return &delivery{
		id:       meta.Stream + ":" + strconv.FormatUint(meta.Sequence.Stream, 10),
		topic:    m.Subject,
		header:   m.Header,
		data:     m.Data,
		size:     m.Size(),
		seq:      meta.Sequence.Stream,
		stored:   meta.Timestamp,
		redriven: m.Header.Get(HeaderFor) != "",
	}
}

type task = lanes.Task[*delivery]

// name tells a message from the others of its slot. It has the message's sequence and the time at which
// the stream stored it, because a worker or a stream that is created again under its old
// name may see the same sequences again.
func (d *delivery) name() string {
	if d.timer != nil {
		return "timer-" + d.timer.ID
	}
	return strconv.FormatUint(d.seq, 10) + "-" + strconv.FormatInt(d.stored.UnixNano(), 36)
}

// firedTimer returns the timer that has caused a message, nil if none has.
func (d *delivery) firedTimer() *engine.Fired {
	name := d.header.Get(HeaderTimer)
	switch {
	case d.timer != nil:
		return &engine.Fired{Name: d.timer.Name, Due: d.timer.Due}
	case !d.redriven || name == "":
		return nil
	}
	due, _ := time.Parse(time.RFC3339Nano, d.header.Get(HeaderTimerDue)) // a host wrote it
	return &engine.Fired{Name: name, Due: due}
}

// keyOf returns the key of a message: messages with one key are handled in order.
func (r *runner) keyOf(d *delivery) string {
	return cmp.Or(d.header.Get(r.keyHeader()), d.topic)
}

// keyHeader returns the name of the header with a message's key.
func (r *runner) keyHeader() string {
	if len(r.members) == 1 { // a group handles one message at a time anyway
		return r.members[0].record.keyHeader()
	}
	return HeaderKey
}

// acker sends the server the answer to a message, with the words of nats.go. A timer has a nil
// acker, because the server awaits no answer to it.
type acker struct {
	nc    *nats.Conn
	reply string
}

func (a *acker) say(answer string) error {
	if a == nil {
		return nil
	}
	return a.nc.Publish(a.reply, []byte(answer))
}

func (a *acker) ack() error                 { return a.say("+ACK") }
func (a *acker) inProgress() error          { return a.say("+WPI") }
func (a *acker) terminate(why string) error { return a.say("+TERM " + why) }
func (a *acker) nak(delay time.Duration) error {
	if delay <= 0 {
		return a.say("-NAK")
	}
	return a.say(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}
