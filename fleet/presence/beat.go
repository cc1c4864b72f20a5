package presence

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
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

// holds reports whether a link is that of beat k.
func (s *said) holds(k int, link []byte) bool {
	for range k {
		sum := sha256.Sum256(link)
		link = sum[:]
	}
	return len(s.Anchor) == sha256.Size && bytes.Equal(link, s.Anchor) && s.Every > 0 && s.Every <= maxEvery
}

// maxEvery is the longest time between two beats.
const maxEvery = time.Hour

// at returns the process as of beat k.
func (s *said) at(k int) Process {
	p := s.Process
	p.Number += uint64(k) //nolint:gosec // at most maxBeats
	p.AnnouncedAt = p.AnnouncedAt.Add(time.Duration(k) * s.Every)
	return p
}

// opened is an announcement whose signature was found to hold.
type opened struct {
	sum  [sha256.Size]byte // of the sealed announcement
	key  []byte
	said said
}

// open returns the announcement in an entry of id, as of its beat. It checks the signature
// once for each announcement.
func (f *Fleet) open(id string, entry []byte) (p Process, key []byte, err error) {
	sealed, k, link, err := cutBeat(entry)
	if err != nil {
		return p, nil, err
	}
	sum := sha256.Sum256(sealed)
	o := f.book.opened(id)
	if o == nil || o.sum != sum {
		if o, err = f.unseal(id, sealed); err != nil {
			return p, nil, err
		}
		o.sum = sum
		f.book.keep(id, o)
	}
	if k > 0 && !o.said.holds(k, link) {
		return p, nil, errBeat
	}
	return o.said.at(k), o.key, nil
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
	if b.beats == nil || k > maxBeats || k/afresh > b.k/afresh || !a.idle() {
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
