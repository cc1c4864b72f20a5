package presence

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/endclass"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Event is one entry of the journal of the fleet.
type Event struct {
	Seq     uint64    `json:"-"` // its place in the journal
	At      time.Time `json:"-"` // when it happened, by the broker's clock
	Service string    `json:"service"`
	Process string    `json:"process"` // the id
	// Kind is "joined", "phase", "unit", "restart", "killed", "probe", "hook", "drainer",
	// "reload", "suspended", "resumed", "command", "exit", "lost", "returned" or "dropped";
	// "forged" for a record that cannot be read, or that says it is of another process.
	Kind       string `json:"kind"`
	Name       string `json:"name,omitempty"` // of the unit, the probe, the hook
	From       string `json:"from,omitempty"`
	To         string `json:"to,omitempty"`
	Cause      string `json:"cause,omitempty"`
	Who        string `json:"who,omitempty"`
	Version    string `json:"version,omitempty"`
	Host       string `json:"host,omitempty"`
	ExitStatus int    `json:"exitStatus,omitempty"`
	Count      int64  `json:"count,omitempty"` // of events that were dropped, or of restarts

	// Life is when the life that has ended began, by its process's clock: in "exit" and "lost"
	// that of the process, and in "joined" that of the life before, whose end From, ExitStatus and Cause
	// describe. So an end that only the next life knows is told, however late that begins.
	Life time.Time `json:"life,omitzero"`

	// Waited is how long the event waited in its process. The broker's time minus this is
	// when it happened, also when the process's clock is wrong. In JSON it is in nanoseconds.
	Waited time.Duration `json:"waited,omitempty"`

	once string    // an id that the journal takes only once, "" for none
	seen time.Time // in "lost": when the server stored the process's last announcement
}

// The classes of an end: the To of an event "exit" or "lost".
const (
	EndClean  = endclass.Clean  // it ended as it was asked to, or finished
	EndFailed = endclass.Failed // a unit or a hook failed
	EndHung   = endclass.Hung   // a part did not return in its time and was abandoned
	EndCut    = endclass.Cut    // requests were cut or hooks skipped: the time was too short
	EndLost   = endclass.Lost   // it disappeared and reported no end
	EndOOM    = endclass.OOM    // the same, with its memory at the limit
	EndForced = endclass.Forced // the same, in the middle of a stop

	// By what the platform knows:
	EndPanicked = endclass.Panicked // it ended with the exit status of a panic
	EndKilled   = endclass.Killed   // a signal ended it, and not because memory ran out
	EndEvicted  = endclass.Evicted  // its host had to give it up
)

// Limits of the journal.
const (
	maxEvent       = 16 << 10 // bytes of one event, with its header
	maxEventHeader = 1 << 10
	maxEventText   = 2 << 10 // bytes of one of its texts
	eventRate      = 50      // events a second of one process, on average
	eventBurst     = 500     // and at once
	maxWaiting     = 1000    // events that wait for the broker
)

// openJournal opens the journal, and creates its stream when it is missing.
func openJournal(ctx context.Context, js jetstream.JetStream, c Config) (*eventlog.Log, error) {
	log, err := eventlog.Open(ctx, js, eventlog.Config{
		Stream:      c.Journal,
		Setting:     "presence.Config.Journal",
		Subjects:    []string{c.Prefix + ".event.>"},
		Description: "the journal of the fleet",
		MaxAge:      c.JournalAge,
		MaxBytes:    c.JournalBytes,
		BytesOf:     "presence.Config.JournalBytes",
		MaxRecord:   maxEvent,
	})
	if err != nil {
		return nil, fmt.Errorf("presence: journal: %w", err)
	}
	return log, nil
}

// eventSubject returns the subject of an event: PREFIX.event.SERVICE.ID.KIND, where ID is the
// id of the process with a dash for its dot. A process needs the permission to publish only
// below its own id.
func eventSubject(c Config, e Event) string {
	tokens := []string{c.Prefix, "event", serviceToken(e.Service), serviceToken(e.Process), serviceToken(e.Kind)}
	return strings.Join(tokens, ".")
}

// encode returns the event as it is stored. It cuts the texts until the event fits: JSON
// may need six bytes for one of a text, and an event that the stream refuses would hold up
// all events behind it.
func (e Event) encode() []byte {
	// The subject has the first 100 characters of these two, which have 400 bytes at most.
	e.Service, e.Process = text.Clip(e.Service, 512), text.Clip(e.Process, 512)
	for most := maxEventText; ; most /= 2 {
		for _, field := range []*string{&e.Name, &e.From, &e.To, &e.Cause, &e.Who, &e.Version, &e.Host} {
			*field = text.Clip(*field, most)
		}
		data, _ := json.Marshal(e) // texts and numbers can always be encoded
		if len(data) <= maxEvent-maxEventHeader || most <= maxEventText/16 {
			return data
		}
	}
}

// once returns the id of an event of a kind that happens once in a life of a process, so that
// the journal has it once, however many programs report it.
func once(kind, id string, started time.Time) string {
	return fmt.Sprintf("%s.%s.%d", kind, id, started.UnixNano())
}

// readEvent reads a record. A record that cannot be read, or that claims to be of another process,
// is forged: the subject is what the publisher's permissions allow.
func readEvent(r eventlog.Record) Event {
	var e Event
	err := json.Unmarshal(r.Data, &e)
	parts := append([]string{"", "", ""}, strings.Split(r.Subject, ".")...)
	parts = parts[len(parts)-3:]
	named := parts[0] == serviceToken(e.Service) && parts[1] == serviceToken(e.Process) && parts[2] == serviceToken(e.Kind)
	owner, _, dotted := strings.Cut(e.Process, ".") // the service in the id of the process
	cause := ""
	switch {
	case err != nil:
		cause = "the record cannot be read: " + text.Clip(err.Error(), 200)
	case !named || dotted && serviceToken(owner) != parts[0]:
		cause = "the record says that it is of " + text.Clip(e.Service+"/"+e.Process, 200)
	}
	if cause != "" {
		e = Event{Kind: "forged", Service: parts[0], Process: parts[1], Cause: cause}
	}
	e.Seq, e.At = r.Seq, r.At.Add(-max(0, e.Waited))
	return e
}

// EventQuery selects events of the journal. An empty field selects all.
type EventQuery struct {
	Service, Process string // Process may lack the service and the dot
	Kinds            []string
	Contains         string // a part of one of the texts from Service to Host, in any case
	Since, Until     time.Time
	After            uint64 // only events with a later Seq
	Before           uint64 // the end of the previous page
	Limit            int    // at least 1
}

// of reports whether the query asks for a process.
func (q EventQuery) of(id string) bool {
	return q.Process == "" || q.Process == id || !strings.Contains(q.Process, ".") && strings.HasSuffix(id, "."+q.Process)
}

func (q EventQuery) matches(e Event) bool {
	switch {
	case q.Service != "" && e.Service != q.Service,
		!q.of(e.Process),
		len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind),
		!q.Since.IsZero() && e.At.Before(q.Since),
		!q.Until.IsZero() && !e.At.Before(q.Until):
		return false
	}
	texts := []string{e.Service, e.Process, e.Kind, e.Name, e.From, e.To, e.Cause, e.Who, e.Version, e.Host}
	return strings.Contains(strings.ToLower(strings.Join(texts, "\n")), strings.ToLower(q.Contains))
}

// Events returns the events that match, newest first, and the value of Before for the
// next page, 0 when there is none. A page may be shorter than Limit and yet have a next
// one. It returns an error when the journal is off or away.
func (f *Fleet) Events(ctx context.Context, q EventQuery) (list []Event, next uint64, err error) {
	if f.cfg.Journal == JournalOff {
		return nil, 0, ErrNoJournal
	}
	journal, err := openJournal(ctx, f.js, f.cfg)
	if err != nil {
		return nil, 0, err
	}
	return eventsOf(ctx, journal, f.cfg, q)
}

// eventsOf is Fleet.Events on an open journal.
func eventsOf(
	ctx context.Context, journal *eventlog.Log, c Config, q EventQuery,
) (list []Event, next uint64, err error) {
	service, id := "*", "*"
	if q.Service != "" {
		service = serviceToken(q.Service)
	}
	if strings.Contains(q.Process, ".") {
		id = serviceToken(q.Process)
	}
	subject := strings.Join([]string{c.Prefix, "event", service, id, ""}, ".")
	var subjects []string
	for _, kind := range q.Kinds {
		subjects = append(subjects, subject+serviceToken(kind))
	}
	if len(q.Kinds) == 0 || slices.Contains(q.Kinds, "forged") { // a forged record may be under any kind
		subjects = []string{subject + "*"}
	}
	records, next, err := journal.Back(ctx, eventlog.Query{
		Subjects: slices.Compact(slices.Sorted(slices.Values(subjects))),
		After:    q.After,
		Before:   q.Before,
		Since:    q.Since,
		Limit:    q.Limit,
		Keep:     func(r eventlog.Record) bool { return q.matches(readEvent(r)) },
	})
	if err != nil {
		return nil, 0, fmt.Errorf("presence: journal: %w", err)
	}
	for _, r := range records {
		list = append(list, readEvent(r))
	}
	return list, next, nil
}
