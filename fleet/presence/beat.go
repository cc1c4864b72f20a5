package presence

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
)

// A process of which nothing is new sends its last announcement again, with a beat: a line
// behind it that proves that the process itself has sent it. A signature for each would
// cost an operator's server most of what an idle process costs at all.
//
// The proofs are a chain of hashes, as in RFC 2289: the announcement has the last link, and
// beat k shows the link k steps before it. Who sees a beat cannot make a later one. The
// number of a beat is the time since the announcement in units of Every, so that an old
// beat that is stored again shows its age.

// maxBeats is how many beats follow one announcement. Then the process announces itself
// anew.
const maxBeats = 12

const beatMark = "\nbeat "

// chain is the links of the beats of one announcement: chain[k] is shown by beat k.
type chain [maxBeats + 1][sha256.Size]byte

func newChain() *chain {
	c := new(chain)
	_, _ = rand.Read(c[maxBeats][:]) // never fails
	for k := maxBeats; k > 0; k-- {
		c[k-1] = sha256.Sum256(c[k][:])
	}
	return c
}

// anchor is the link that the announcement has.
func (c *chain) anchor() []byte { return c[0][:] }

// beat returns the line of beat k.
func (c *chain) beat(k int) string {
	return fmt.Sprint(beatMark, k, " ", base64.RawURLEncoding.EncodeToString(c[k][:]))
}

// said is what an announcement has besides the Process.
type said struct {
	Process
	Anchor []byte        `json:"anchor,omitempty"`
	Every  time.Duration `json:"every,omitempty"` // the unit of the numbers of beats
}

// cutBeat divides an entry into the sealed announcement and its beat, which is 0 for none.
func cutBeat(entry []byte) (sealed []byte, k int, link []byte, err error) {
	i := bytes.LastIndex(entry, []byte(beatMark))
	if i < sealing {
		return entry, 0, nil, nil
	}
	number, text, ok := bytes.Cut(entry[i+len(beatMark):], []byte(" "))
	k, err = strconv.Atoi(string(number))
	if !ok || err != nil || k < 1 || k > maxBeats || len(number) > 2 || len(text) != base64.RawURLEncoding.EncodedLen(sha256.Size) {
		return nil, 0, nil, errBeat
	}
	link, err = base64.RawURLEncoding.Strict().DecodeString(string(text))
	if err != nil {
		return nil, 0, nil, errBeat
	}
	return entry[:i], k, link, nil
}

// maxEvery is the longest time between two beats.
const maxEvery = time.Hour

// opened is an announcement whose signature was found to hold. It does not have the
// Process: the book keeps that once, as of the last beat.
type opened struct {
	sum    [sha256.Size]byte // of the sealed announcement
	key    string
	anchor []byte
	every  time.Duration
	number uint64
	at     time.Time
}

// holds reports whether a link is that of beat k.
func (o *opened) holds(k int, link []byte) bool {
	for range k {
		sum := sha256.Sum256(link)
		link = sum[:]
	}
	return len(o.anchor) == sha256.Size && bytes.Equal(link, o.anchor) && o.every > 0 && o.every <= maxEvery
}

// open returns the announcement in an entry of id, as of its beat. It checks the signature
// once for each announcement. The caller may change the Process, and must not change what
// it refers to: all beats of an announcement share that.
func (f *Fleet) open(id string, entry []byte) (*Process, *opened, error) {
	sealed, k, link, err := cutBeat(entry)
	if err != nil {
		return nil, nil, err
	}
	sum := sha256.Sum256(sealed)
	p, o := f.book.opened(id)
	if o == nil || o.sum != sum {
		if p, o, err = f.unseal(id, sealed); err != nil {
			return nil, nil, err
		}
		o.sum = sum
	}
	if k > 0 && !o.holds(k, link) {
		return nil, nil, errBeat
	}
	now := *p
	now.Number = o.number + uint64(k) //nolint:gosec // at most maxBeats
	now.AnnouncedAt = o.at.Add(time.Duration(k) * o.every)
	now.SeenAt, now.Suspect = time.Time{}, ""
	return &now, o, nil
}

// pulse is the announcement that a process repeats while nothing is new. The zero value
// repeats nothing.
type pulse struct {
	beats  *chain
	sealed []byte
	last   Process
	since  time.Time
	k      int // of the last beat
}

// afresh is how often an idle process looks at itself as a whole: at every afresh'th beat.
const afresh = 4

// renew announces the process: with a beat when nothing is new, and whole otherwise.
func (a *announcer) renew(ctx context.Context, kv jetstream.KeyValue) error {
	b := &a.pulse
	k := max(b.k+1, int(time.Since(b.since)/a.cfg.Every))
	if b.beats == nil || k > maxBeats || !a.idle() || k/afresh > b.k/afresh && !tellsTheSame(a.look(), b.last) {
		b.beats = nil
		return a.put(ctx, kv)
	}
	a.number += uint64(k - b.k) //nolint:gosec // at most maxBeats
	b.k = k
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Every)
	defer cancel()
	_, err := kv.Put(ctx, a.cfg.ID, append(bytes.Clone(b.sealed), b.beats.beat(k)...))
	return err
}

// idle reports whether what changes without an event of the App is as it was announced:
// readiness, and the use of memory. A process that serves requests is not idle.
func (a *announcer) idle() bool {
	last := a.pulse.last
	for _, s := range last.Status.Servers {
		if s.InFlight > 0 || s.Conns > 0 {
			return false
		}
	}
	if (a.app.Ready() == nil) != last.Ready {
		return false
	}
	now := memory()
	moved := max(now.Used, last.Memory.Used) - min(now.Used, last.Memory.Used)
	return now.Limit == last.Memory.Limit && moved*20 <= now.Limit
}

// tellsTheSame reports whether two looks of a process at itself differ only in what no
// operator needs at once: when it looked, how long its units have run, when its checks ran,
// and its use of memory, which idle judges.
func tellsTheSame(a, b Process) bool {
	first, err := json.Marshal(lasting(a))
	if err != nil {
		return false
	}
	second, err := json.Marshal(lasting(b))
	return err == nil && bytes.Equal(first, second)
}

// lasting returns p without what changes in an idle process.
func lasting(p Process) Process {
	p.Number, p.AnnouncedAt, p.Memory, p.Status.At = 0, time.Time{}, Memory{}, time.Time{}
	p.Status.Probes = slices.Clone(p.Status.Probes)
	for i := range p.Status.Probes {
		c := &p.Status.Probes[i]
		c.Checked, c.Latency, c.Runs, c.Running = time.Time{}, 0, 0, 0
	}
	p.Status.Report.Units = slices.Clone(p.Status.Report.Units)
	for i := range p.Status.Report.Units {
		if o := &p.Status.Report.Units[i]; o.Result == lifecycle.ResultRunning {
			o.Took = 0
		}
	}
	p.Status.Servers = slices.Clone(p.Status.Servers)
	for i := range p.Status.Servers {
		p.Status.Servers[i].Accepted, p.Status.Servers[i].LastArrival = 0, time.Time{}
	}
	return p
}
