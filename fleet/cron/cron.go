// Package cron calls a function, or feeds a hosted worker, at times of the calendar in a time
// zone. The NATS server keeps the schedules and stores a message at each of their times (message
// schedules, nats-server 2.14 and later). So a time passes although no process looks, and the next
// process that looks finds it.
//
//	cfg.Streams = append(cfg.Streams, cron.Stream("CRON")) // of broker.Config
//
//	err := cron.Set(ctx, js, "CRON", cron.Schedule{Name: "report", Cron: "0 9 * * MON-FRI", Zone: "Europe/Berlin"})
//	app.Supervise("report", func(ctx context.Context) error {
//		return cron.Handle(ctx, js, "CRON", "report", func(ctx context.Context, t cron.Tick) error {
//			return orders.Create(ctx, &Report{ID: t.At.Format("2006-01-02")}, workflow.Key(t.ID))
//		})
//	}, lifecycle.DefaultBackoff())
//
// A hosted worker needs no function: its topic is [Topic].
//
// # Missed times
//
// The stream keeps the last time of each schedule. When several pass while no process handles
// them, or while the server is down, the schedule fires once for all of them.
//
// # Daylight saving time
//
// The server goes by the clock on the wall of the zone. A time that the clock skips does not come
// on that day, and a time that the clock shows twice comes twice. Take a time that is never
// skipped, in most zones any before midnight, or leave the zone empty for UTC.
package cron

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

// ErrInvalid is returned for a schedule that cannot work.
var ErrInvalid = errors.New("cron: invalid schedule")

// Schedule says when a message is stored.
type Schedule struct {
	// Name identifies it in its stream: 1 to 64 letters, digits, - and _.
	Name string
	// Cron has five fields: minute, hour, day of the month, month and day of the week. A field is
	// *, a number, a name such as MON or JAN, a range, a step (*/15) or a list of these. With six
	// fields the first one is the second. It may also be @hourly, @daily, @weekly, @monthly,
	// @yearly, or @every and a duration of a second or more, without a zone.
	Cron string
	// Zone is a name of the IANA time zone database, such as "Europe/Berlin". Defaults to UTC.
	Zone string
	// Data is the message. It may be empty.
	Data []byte
}

// Stream declares a stream of schedules, for broker.Config.Streams. The name may have letters,
// digits, - and _. The caller may set Replicas.
func Stream(name string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       "schedules, and the last time of each",
		Subjects:          []string{"cron." + name + ".>"},
		Storage:           jetstream.FileStorage,
		MaxMsgsPerSubject: 1,
		AllowRollup:       true,
		AllowMsgSchedules: true,
		AllowDirect:       true,
	}
}

// Topic is the subject to which the server sends the messages of a schedule: the topic of a hosted
// worker.
func Topic(stream, name string) string { return "cron." + stream + ".due." + name }

// subject is where the schedule itself is stored.
func subject(stream, name string) string { return "cron." + stream + ".set." + name }

var validName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

const (
	headerCron   = "Nats-Schedule"
	headerZone   = "Nats-Schedule-Time-Zone"
	headerTarget = "Nats-Schedule-Target"
)

// The server's codes for a stream without schedules, a pattern and a zone that it does not know.
const (
	codeDisabled jetstream.ErrorCode = 10188
	codePattern  jetstream.ErrorCode = 10189
	codeZone     jetstream.ErrorCode = 10223
)

// Set stores a schedule in a stream, in place of the one of its name. A schedule that is there
// already stays as it is, so every process may set what it needs when it starts. The error wraps
// [ErrInvalid] when the name is wrong or the server does not take the schedule, and
// jetstream.ErrStreamNotFound when there is no such stream.
func Set(ctx context.Context, js jetstream.JetStream, stream string, s Schedule) error {
	fail := func(err error) error {
		return fmt.Errorf("set the schedule %q in %s: %w", s.Name, stream, natserr.Plain(err))
	}
	if !validName.MatchString(s.Name) {
		return fail(fmt.Errorf("%w: its name must be 1 to 64 letters, digits, - and _", ErrInvalid))
	}
	at, err := open(ctx, js, stream)
	if err != nil {
		return fail(err)
	}
	msg := s.message(stream)
	last, err := at.GetLastMsgForSubject(ctx, msg.Subject)
	switch {
	case err == nil && same(last, msg):
		return nil
	case err != nil && !errors.Is(err, jetstream.ErrMsgNotFound):
		return fail(err)
	}
	_, err = js.PublishMsg(ctx, msg)
	switch {
	case natserr.Is(err, codeDisabled):
		err = fmt.Errorf("%w: the stream takes no schedules: declare it with cron.Stream: %w", ErrInvalid, err)
	case natserr.Is(err, codePattern):
		const want = "five fields, or six with seconds, such as 0 9 * * MON-FRI, or @daily; @every takes no zone"
		err = fmt.Errorf("%w: %q: want %s: %w", ErrInvalid, s.Cron, want, err)
	case natserr.Is(err, codeZone):
		err = fmt.Errorf("%w: the server knows no time zone %q: want a name such as Europe/Berlin: %w", ErrInvalid, s.Zone, err)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// message is the message that stores a schedule.
func (s Schedule) message(stream string) *nats.Msg {
	msg := nats.NewMsg(subject(stream, s.Name))
	msg.Data = s.Data
	pattern := strings.Join(strings.Fields(s.Cron), " ")
	if strings.Count(pattern, " ") == 4 && !strings.HasPrefix(pattern, "@") {
		pattern = "0 " + pattern // the server wants seconds
	}
	if pattern == "" {
		pattern = "-" // without a pattern the message would be no schedule
	}
	msg.Header.Set(headerCron, pattern)
	msg.Header.Set(headerTarget, Topic(stream, s.Name))
	if s.Zone != "" {
		msg.Header.Set(headerZone, s.Zone)
	}
	return msg
}

func same(stored *jetstream.RawStreamMsg, msg *nats.Msg) bool {
	for _, name := range []string{headerCron, headerTarget, headerZone} {
		if stored.Header.Get(name) != msg.Header.Get(name) {
			return false
		}
	}
	return string(stored.Data) == string(msg.Data)
}

// Remove removes a schedule, its last time and the state of [Handle]. It returns nil when there is
// none. A call that is in progress goes on to its end, and does not come again: then that Handle
// returns an error.
func Remove(ctx context.Context, js jetstream.JetStream, stream, name string) error {
	at, err := open(ctx, js, stream)
	for _, of := range []string{subject(stream, name), Topic(stream, name)} {
		if err == nil {
			err = at.Purge(ctx, jetstream.WithPurgeSubject(of))
		}
	}
	if err == nil {
		err = at.DeleteConsumer(ctx, durable(name))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove the schedule %q from %s: %w", name, stream, natserr.Plain(err))
	}
	return nil
}

// open returns the stream.
func open(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Stream, error) {
	at, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("%w: declare it to the broker, see cron.Stream", err)
	}
	return at, err
}
