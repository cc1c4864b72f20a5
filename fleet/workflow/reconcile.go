package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A bucket can lose entities without a message that says so: by its limits of age and
// size, by a purge, by the deletion of single messages. A follower finds that out when
// it looks at the bucket: it compares the first message and the number of keys, both
// at the sequence number that it has read up to.

// removed marks the revision of a key, in follower.keys, as a deletion.
const removed = 1 << 63

// maxChecks bounds how many keys one round asks the server about, one by one.
const maxChecks = 1000

// look is the state of a bucket at one moment.
type look struct {
	at          time.Time // before it was asked for
	first, last uint64
	keys        int
	counted     bool // keys are those of the filter, not all subjects of the stream
}

// subjects is the server's answer to a question about the subjects of a filter.
type subjects struct {
	Error *jetstream.APIError `json:"error"`
	Total int                 `json:"total"`
	State struct {
		Messages uint64            `json:"messages"`
		First    uint64            `json:"first_seq"`
		Last     uint64            `json:"last_seq"`
		Keys     int               `json:"num_subjects"` // of the stream
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
}

// subjects asks for the subjects of the filter, from the one at offset on.
func (f *follower) subjects(ctx context.Context, offset int) (answer subjects, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request := fmt.Sprintf(`{"subjects_filter":%s,"offset":%d}`, quote(f.filter), offset)
	reply, err := f.b.nc.RequestWithContext(ctx, f.b.api+"STREAM.INFO."+f.b.stream, []byte(request))
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return answer, err
	}
	if answer.Error != nil {
		return answer, answer.Error
	}
	return answer, nil
}

// noNames is an offset behind every subject: the answer has numbers and no names.
const noNames = math.MaxInt32

// enter waits for the turn to pass something on. It returns false when ctx ends first.
func (f *follower) enter(ctx context.Context) bool {
	select {
	case f.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *follower) leave() { <-f.turn }

// pass passes a message on. The caller has the turn.
func (f *follower) pass(e *entry) {
	if l := f.pending; l != nil && e.revision > l.last {
		f.pending = nil
		f.reached(*l)
	}
	f.to.Put(e.key, e)
	revision := e.revision
	if e.deleted() {
		revision |= removed
	}
	before := len(f.keys)
	f.keys[e.key] = revision
	if f.asking && len(f.keys) > before {
		f.added = append(f.added, e.revision)
	}
	f.note(mark{e.revision, e.at, e.get(headerOp)})
	if l := f.pending; l != nil && e.revision == l.last {
		f.pending = nil
		f.reached(*l)
	}
}

// listed reports whether a list of names has a key as it is. The server replaces bytes
// that are not UTF-8, so two such keys may have one name.
func listed(key string) bool {
	return utf8.ValidString(key) && !strings.ContainsRune(key, utf8.RuneError)
}

// lose passes on that a key is gone. The caller has the turn.
func (f *follower) lose(key string) {
	known := f.keys[key]
	delete(f.keys, key)
	if known&removed == 0 {
		f.to.Put(key, &entry{key: key, revision: f.seq.Load(), at: time.Now(), header: nats.Header{headerOperation: {"PURGE"}}})
	}
}

// reached compares what the follower has passed on with the bucket at l. It has passed
// on all that was in the bucket then. The caller has the turn.
func (f *follower) reached(l look) {
	if !f.told { // the last of the initial content was removed before it came
		f.sync()
	}
	if l.first > f.oldest {
		f.oldest = l.last + 1
		for key, revision := range f.keys {
			if revision &^= removed; revision < l.first {
				f.lose(key)
			} else {
				f.oldest = min(f.oldest, revision)
			}
		}
	}
	keys := len(f.keys)
	for _, seq := range f.added {
		if seq > l.last {
			keys--
		}
	}
	if !l.counted {
		keys += f.others
	}
	if keys != l.keys {
		f.suspect = true
		return
	}
	f.current(l)
}

// current says that the follower has everything that was in the bucket at l, and
// nothing else.
func (f *follower) current(l look) {
	f.suspect = false
	f.whole.Store(l.last)
	f.asOf.Store(&l.at)
	if f.caught != nil {
		f.caught()
	}
}

// inspect looks at the bucket. It returns true when the follower has to begin again.
func (f *follower) inspect(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) bool {
	if !f.enter(ctx) {
		return false
	}
	f.asking, f.added = true, nil
	f.leave()
	// Read seq before the stream's state, so that it cannot be ahead of it.
	seq, l := f.seq.Load(), look{at: time.Now()}
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	info, err := stream.Info(attempt)
	cancel()
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return true
	}
	if err == nil && (!info.Created.Equal(f.created) || info.State.LastSeq < seq) {
		return true
	}
	if err == nil {
		f.b.traits.learn(info)
		l.first, l.last, l.keys = info.State.FirstSeq, info.State.LastSeq, int(info.State.NumSubjects)
	}
	// Of a limited view the keys beside it may come as others of its own go.
	if err == nil && f.filter != "$KV."+f.b.name+".>" {
		var answer subjects
		answer, err = f.subjects(ctx, noNames)
		l.first, l.last, l.keys, l.counted = answer.State.First, answer.State.Last, answer.Total, true
	}
	if !f.enter(ctx) {
		return false
	}
	f.asking = false
	if err == nil && f.pending == nil {
		if f.seq.Load() >= l.last {
			f.reached(l)
		} else {
			f.pending = &l
		}
	}
	suspect, pending := f.suspect, f.pending
	f.leave()
	if pending != nil {
		f.rush()
		f.waitFor(ctx, consumer, pending)
	}
	if suspect {
		return f.reconcile(ctx)
	}
	return false
}

// waitFor waits for a moment until the follower reaches l. The last messages before l
// may have been removed before the follower read them, and then only the consumer can
// tell that it has nothing left to send.
func (f *follower) waitFor(ctx context.Context, consumer jetstream.Consumer, l *look) {
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return
	}
	if f.seq.Load() >= l.last {
		return
	}
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	info, err := consumer.Info(attempt)
	if err != nil || info.NumPending > 0 || !f.enter(ctx) {
		return
	}
	defer f.leave()
	if f.pending == l && info.Delivered.Consumer == f.passed {
		f.pending = nil
		f.reached(*l)
	}
}

// reconcile reads the names of the bucket's keys and loses those that are not there. It
// returns true when the follower has to read everything again.
func (f *follower) reconcile(ctx context.Context) bool {
	l, names, others, steady, err := f.names(ctx)
	if err != nil || !f.enter(ctx) {
		return false
	}
	var missing, ask []string
	for key, revision := range f.keys {
		switch {
		case revision&^removed > l.last || names[key]:
		case steady && listed(key):
			missing = append(missing, key)
		default: // the pages are of different times, or do not have it: ask for each key
			ask = append(ask, key)
		}
	}
	if len(ask) > 0 {
		f.leave()
		if len(ask) > maxChecks {
			f.fresh = true
			return true
		}
		gone, _ := f.confirm(ctx, ask)
		missing = append(missing, gone...)
		if !f.enter(ctx) {
			return false
		}
	}
	defer f.leave()
	for _, key := range missing {
		if f.keys[key]&^removed <= l.last {
			f.lose(key)
		}
	}
	if steady {
		unlisted := 0
		for key := range f.keys {
			if !listed(key) {
				unlisted++
			}
		}
		f.others = max(others-unlisted, 0) // the server counts and lists at two moments
		if len(f.keys)-unlisted == len(names) && f.seq.Load() >= l.last {
			f.current(l)
		}
	}
	return false
}

// confirm returns the keys of which the server has no message. It asks about the first
// n keys: all of them, unless the server does not answer.
func (f *follower) confirm(ctx context.Context, keys []string) (gone []string, n int) {
	for n, key := range keys {
		_, err := f.b.last(ctx, key)
		if isNotFound(err) {
			gone = append(gone, key)
		} else if err != nil {
			return gone, n
		}
	}
	return gone, len(keys)
}

// names reads the bucket's keys, in pages. steady reports whether nothing changed
// meanwhile. others is the number of subjects of the stream that are no keys.
func (f *follower) names(ctx context.Context) (l look, names map[string]bool, others int, steady bool, err error) {
	l.at, names, steady = time.Now(), make(map[string]bool), true
	var first subjects
	for offset := 0; ; {
		p, err := f.subjects(ctx, offset)
		if err != nil {
			return l, nil, 0, false, err
		}
		for subject := range p.State.Subjects {
			if key := strings.TrimPrefix(subject, "$KV."+f.b.name+"."); listed(key) {
				names[key] = true
			}
		}
		if offset == 0 {
			first = p
			l.first, l.last, l.keys = p.State.First, p.State.Last, p.State.Keys
		}
		steady = steady && p.State.Messages == first.State.Messages && p.State.Last == first.State.Last && p.State.Keys == first.State.Keys
		if offset += len(p.State.Subjects); offset >= p.Total || len(p.State.Subjects) == 0 {
			return l, names, first.State.Keys - len(names), steady, nil
		}
	}
}
