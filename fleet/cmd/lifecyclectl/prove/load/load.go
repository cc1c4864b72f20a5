// Package load sends requests to one address, like clients that never send a request
// twice, and writes what became of them as JSON lines. "lifecyclectl prove" runs it
// as a Job beside the service, so that no request leaves the cluster.
//
// Begin at [Run]; clients.go has the clients. It imports only the standard library, so that
// the Job's image needs nothing else.
package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// The kinds of clients.
const (
	Kept   = "HTTP/1.1 kept"    // keeps its connection, is idle for 0 to 4 s between two requests
	Fresh  = "HTTP/1.1 new"     // a connection for each request
	HTTP2  = "HTTP/2 POST"      // a body that cannot be read twice, so that no library repeats it
	Stream = "stream of events" // lost when it is cut, and not when the server ends it
)

// Kinds lists all kinds, in the order of reports.
var Kinds = []string{Kept, Fresh, HTTP2, Stream}

// The limits of a run.
const (
	AnswerIn  = 15 * time.Second // a request that takes longer is lost
	tryIn     = 5 * time.Second  // the same for the first request of a kind
	maxLosses = 5000             // losses that have a record each; all are counted
)

// Plan says what to send. The zero value of a path sends nothing of that kind,
// except Get, which is required.
type Plan struct {
	Addr    string `json:"addr"` // host:port
	TLS     bool   `json:"tls,omitempty"`
	Get     string `json:"get"`               // path of the HTTP/1.1 requests
	Post    string `json:"post,omitempty"`    // path of the HTTP/2 requests
	Stream  string `json:"stream,omitempty"`  // path of an event stream
	Clients int    `json:"clients,omitempty"` // of each kind; defaults to 8
}

// Record is one line. Exactly one of its parts is set.
type Record struct {
	Seq   int       `json:"seq"`
	At    time.Time `json:"at"` // by the clock of this machine, as all times of a record
	Hello *Hello    `json:"hello,omitempty"`
	Tick  *Tick     `json:"tick,omitempty"`
	Loss  *Loss     `json:"loss,omitempty"`
}

// Hello is the first record: what the server answered to one request of each kind.
type Hello struct {
	Error   string            `json:"error,omitempty"`   // why there is no load at all
	Skipped map[string]string `json:"skipped,omitempty"` // why there is none of a kind
}

// Tick has the totals so far. There is one each second.
type Tick struct {
	Counts map[string]Count `json:"counts"`
}

// Count has the totals of one kind.
type Count struct {
	Sent     int `json:"sent"`
	Answered int `json:"answered"`
	Lost     int `json:"lost"`
}

// Loss is one lost request: it has no answer, or one with a status of 500 or more.
type Loss struct {
	Kind string        `json:"kind"`
	How  How           `json:"how"`
	Sent time.Time     `json:"sent"`
	Lost time.Time     `json:"lost"` // when it was noticed
	Kept bool          `json:"kept"` // on a connection that was used before
	Idle time.Duration `json:"idle,omitempty"`
	Why  string        `json:"why"`
}

// At returns when the request was lost. When no connection was made for it, that is when
// it was sent.
func (l Loss) At() time.Time {
	if l.How == Unreachable || l.How == Late {
		return l.Sent
	}
	return l.Lost
}

// How says how a request was lost.
type How string

// How requests are lost.
const (
	Refused     How = "refused"     // no process listens there
	Unreachable How = "unreachable" // no machine is there any more, or it does not answer the connect
	Closed      How = "closed"      // the connection ended before the first byte of the answer
	Cut         How = "cut"         // it ended in the middle of the answer
	GoAway      How = "goaway"      // HTTP/2's GOAWAY came while the request was on its way
	Late        How = "late"        // there was no answer in time
	Status      How = "status"      // the answer was 500 or more
)

// Command runs the plan, which is JSON, and returns when ctx ends.
func Command(ctx context.Context, plan string, w io.Writer) error {
	var p Plan
	if err := json.Unmarshal([]byte(plan), &p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	return Run(ctx, p, w)
}

// Run sends requests until ctx ends, and writes records. It returns when every
// request that was sent has its answer or is lost. It returns an error when a record
// cannot be written.
func Run(ctx context.Context, p Plan, w io.Writer) error {
	if p.Clients <= 0 {
		p.Clients = 8
	}
	r := &run{plan: p, to: &target{p}, w: w, counts: make(map[string]Count)}
	hello := r.hello(ctx)
	r.write(Record{Hello: &hello})
	if hello.Error != "" {
		<-ctx.Done() // the reader of the records decides when to end this
		return r.err
	}
	var clients sync.WaitGroup
	start := func(kind string, number int, client func(context.Context, func(Loss))) {
		if _, skip := hello.Skipped[kind]; skip {
			return
		}
		for range number {
			clients.Go(func() {
				if pause(ctx, rand.N(500*time.Millisecond)) { // not all at the same time
					client(ctx, func(l Loss) { r.count(kind, l) })
				}
			})
		}
	}
	start(Kept, 3*p.Clients, r.to.kept)
	start(Fresh, p.Clients, r.to.fresh)
	start(HTTP2, p.Clients, r.to.http2)
	start(Stream, 2, r.to.stream)
	for pause(ctx, time.Second) {
		r.tick()
	}
	clients.Wait()
	r.tick()
	return r.err
}

// hello asks once for each kind.
func (r *run) hello(ctx context.Context) Hello {
	ctx, cancel := context.WithTimeout(ctx, 4*tryIn)
	defer cancel()
	h := Hello{Skipped: make(map[string]string)}
	if err := r.to.tryGet(); err != nil {
		h.Error = fmt.Sprintf("GET %s: %v", r.plan.Get, err)
		return h
	}
	if r.plan.Post == "" {
		h.Skipped[HTTP2] = "not asked for"
	} else if err := r.to.tryPost(ctx); err != nil {
		h.Skipped[HTTP2] = fmt.Sprintf("the service does not speak it here: %v", err)
	}
	if r.plan.Stream == "" {
		h.Skipped[Stream] = "not asked for"
	} else if err := r.to.tryStream(ctx); err != nil {
		h.Error = fmt.Sprintf("GET %s as a stream: %v", r.plan.Stream, err)
	}
	return h
}

// run writes the records of one load.
type run struct {
	plan Plan
	to   *target

	mu     sync.Mutex // guards the fields below
	w      io.Writer
	seq    int
	counts map[string]Count
	losses int   // records of them
	err    error // of the first write that failed
}

func (r *run) write(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLocked(rec)
}

func (r *run) writeLocked(rec Record) {
	r.seq++
	rec.Seq, rec.At = r.seq, time.Now()
	line, err := json.Marshal(rec)
	if err == nil {
		_, err = r.w.Write(append(line, '\n'))
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("write a record: %w", err)
	}
}

func (r *run) tick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeLocked(Record{Tick: &Tick{Counts: maps.Clone(r.counts)}})
}

// count takes what became of a request. One with an answer has no How.
func (r *run) count(kind string, l Loss) {
	l.Kind, l.Lost = kind, time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.counts[kind]
	n.Sent++
	if l.How == "" {
		n.Answered++
	} else {
		n.Lost++
	}
	r.counts[kind] = n
	if l.How != "" && r.losses < maxLosses {
		r.losses++
		r.writeLocked(Record{Loss: &l})
	}
}

// repeat sends requests until ctx ends, and is idle between two.
func repeat(ctx context.Context, report func(Loss), idle func() time.Duration, send func() Loss) {
	for {
		sent := time.Now()
		l := send()
		l.Sent = sent
		report(l)
		if !pause(ctx, idle()) {
			return
		}
	}
}

// pause waits for d. It reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// gap returns the idle time of a client that keeps its connection: often short, and
// sometimes as long as people take.
func gap() time.Duration {
	if rand.N(2) == 0 {
		return rand.N(300 * time.Millisecond)
	}
	return rand.N(4 * time.Second)
}
