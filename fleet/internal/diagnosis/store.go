package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Store is what is known of the streams of the NATS that the fleet is in.
type Store struct {
	Refused      string // why a write was refused, "" when the last one was taken
	RefusedSince time.Time
	Lost         []Lost // the largest first
	Replaced     bool   // each stream on disk that was there is among Lost
	Full         []Full
	Stalled      []Backlog
	Growing      []Backlog
}

// Lost is a stream whose messages are gone: it is missing, or was made anew.
type Lost struct {
	Stream   string
	Messages uint64 // that it had
	Since    time.Time
	Missing  bool // it has not been made again
}

// Full is a stream that refuses writes when it is full, and nearly is.
type Full struct {
	Stream     string
	What       string // "bytes" or "messages"
	Used, Most int64
}

// Backlog is what waits for a consumer that finishes nothing, or not enough.
type Backlog struct {
	Stream, Consumer string
	Host             string // the name of the hosts that have made the consumer, "" for none
	Left             uint64
	Unacknowledged   int    // of Left: delivered, and not acknowledged
	Redelivered      int    // of Unacknowledged: delivered more than once
	From             uint64 // what was left at Since, for a backlog that grows
	Since            time.Time
}

// streamName names a stream for people: a bucket by its own name.
func streamName(s string) string {
	if bucket, ok := strings.CutPrefix(s, "KV_"); ok {
		return "the bucket " + bucket
	}
	return "the stream " + s
}

// lostPart begins the cause when not all of the store was lost.
const lostPart = "data was lost"

// maxLostNamed is how many lost streams a finding names.
const maxLostNamed = 8

// stored applies the rules about the streams of the fleet.
func stored(f Fleet) (list []*operatorv1.Finding) {
	if why := f.Store.Refused; why != "" {
		list = append(list, found("store-refuses-writes", "dependency/NATS", f.Store.RefusedSince, 1).
			because("NATS takes no writes: %s", why).
			do("the disk of NATS: make room; a server that is not embedded takes writes again after its restart", "lifecyclectl doctor"))
	}
	if n := len(f.Store.Lost); n > 0 {
		var parts []string
		since := f.Store.Lost[0].Since
		for i, l := range f.Store.Lost {
			if l.Since.Before(since) {
				since = l.Since
			}
			if i < maxLostNamed {
				parts = append(parts, l.text())
			}
		}
		if n > maxLostNamed {
			parts = append(parts, fmt.Sprintf("and %d more", n-maxLostNamed))
		}
		what := lostPart
		if f.Store.Replaced {
			what = "the store was replaced: NATS has nothing of what it had on disk"
		}
		list = append(list, found("store-replaced", "dependency/NATS", since, n).
			because("%s: %s", what, strings.Join(parts, ", ")).
			do("the disk of NATS, which must outlive it; restore the buckets from a backup", "lifecyclectl help restore"))
	}
	for _, s := range f.Store.Full {
		list = append(list, found("stream-full", "stream/"+s.Stream, time.Time{}, 1).
			because("%s has %d of at most %d %s, and refuses writes when it is full", streamName(s.Stream), s.Used, s.Most, s.What).
			do("the limit of the stream, or what it keeps", "nats stream info "+text.Shell(s.Stream)))
	}
	for _, b := range f.Store.Stalled {
		for _, r := range b.readers(f) {
			list = append(list, found("consumer-stalled", r.subject, b.Since, int(b.Left)).
				because("the consumer %s of %s has finished nothing for %v while %s%s%s",
					b.Consumer, streamName(b.Stream), f.Now.Sub(b.Since).Round(time.Second),
					count(b.Left, "message waits", "messages wait"), b.held(), r.why).
				do("", r.next))
		}
	}
	for _, b := range f.Store.Growing {
		for _, r := range b.readers(f) {
			list = append(list, found("backlog-grows", r.subject, b.Since, int(b.Left)).
				because("what waits for the consumer %s of %s has grown from %d to %d messages within %v%s",
					b.Consumer, streamName(b.Stream), b.From, b.Left, f.Now.Sub(b.Since).Round(time.Second), r.why).
				do("the number of its processes, or what it does for each message", r.next))
		}
	}
	return list
}

// text says what is lost of one stream.
func (l Lost) text() string {
	fate := "was made anew, empty"
	if l.Missing {
		fate = "is missing"
	}
	return fmt.Sprintf("%s %s (it had %s)", streamName(l.Stream), fate, count(l.Messages, "message", "messages"))
}

// reader is what a backlog is of.
type reader struct {
	subject string
	why     string // is added to the cause
	next    string // the next command
}

// readers returns what the backlog is of: the hosted worker; or each process that has a unit, or whose
// service has the name of the consumer; or the stream. It is empty for a backlog of workers that no
// operator wants to run.
func (b Backlog) readers(f Fleet) (list []reader) {
	slot, isHosted := strings.CutPrefix(b.Consumer, b.Host+"_")
	if b.Host != "" && isHosted {
		return b.worker(f.Workers, slot)
	}
	for _, p := range f.Processes {
		subject, next := "process/"+p.GetId(), Command("stacks %s", p.GetId())
		if p.GetService() == b.Consumer {
			list = append(list, reader{subject, "; the service has its name", next})
			continue
		}
		path := ""
		each(p.GetUnits(), "", func(u *operatorv1.Unit, at string) {
			if u.GetName() == b.Consumer && path == "" {
				path = at
			}
		})
		if path != "" {
			list = append(list, reader{subject, "; the unit " + path + " has its name", next})
		}
	}
	if len(list) == 0 {
		next := fmt.Sprintf("nats consumer info %s %s", text.Shell(b.Stream), text.Shell(b.Consumer))
		list = []reader{{subject: "stream/" + b.Stream, next: next}}
	}
	return list
}

// worker returns the hosted worker of a slot, unless no operator wants it to run.
func (b Backlog) worker(workers []*operatorv1.Worker, slot string) []reader {
	of := func(w *operatorv1.Worker) bool {
		group := w.GetGroup()
		isOf := slot == "w-"+w.GetId()
		if group != "" {
			isOf = slot == "g-"+group || strings.HasSuffix(slot, "-"+w.GetSpec().GetTenant()+"-"+group)
		}
		return isOf && strings.EqualFold(w.GetDesired(), "running")
	}
	i := slices.IndexFunc(workers, of)
	if i < 0 {
		return nil
	}
	id := workers[i].GetId()
	return []reader{{subject: "worker/" + id, next: Command("workers get %s", id)}}
}

// held says what the consumer's clients do with what they have: it tells a consumer without
// a client from one whose client fails at the same message again and again.
func (b Backlog) held() string {
	switch {
	case b.Redelivered > 0:
		return fmt.Sprintf("; of them, %d delivered more than once and never acknowledged: the handler may fail or hang at the same message", b.Redelivered)
	case b.Unacknowledged > 0:
		return fmt.Sprintf("; of them, %d delivered and not acknowledged", b.Unacknowledged)
	default:
		return "; none of them is delivered: no client may be asking for them"
	}
}

// count returns a number with its noun.
func count[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprint(n, " ", many)
}
