package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
)

// A bucket can lose entities without a message that says so: by its limits of age and
// size, by a purge, by the deletion of single messages. A follower finds that out when
// it looks at the bucket: it compares the number of keys at the sequence number that it
// has read up to. It has every key of the bucket, so with equal numbers the keys are equal.

// deletedBit marks the revision of a key, in follower.keys, as a deletion.
const deletedBit = 1 << 63

// maxChecks bounds how many keys one round asks the server about, one by one.
const maxChecks = 1000

// bucketState is the state of a bucket at one moment.
type bucketState struct {
	at          time.Time // just before the server was asked for it
	first, last uint64
	keys        int
}

// inspect looks at the bucket. It returns true when the follower has to begin again.
func (f *follower) inspect(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) (again bool) {
	return f.compare(ctx, stream, consumer) || f.extra != 0 && f.reconcile(ctx)
}

// compare looks at the bucket. It compares the keys when the follower has read as far as the
// bucket goes, and leaves a pending look otherwise. It returns true when the stream is another
// one.
func (f *follower) compare(ctx context.Context, stream jetstream.Stream, consumer jetstream.Consumer) (another bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if f.pendingLook != nil {
		// The last messages before that look may have been removed before the follower read them.
		if f.allRead(ctx, consumer) {
			f.reached(f.pendingLook)
		}
		return false
	}
	l, own := &bucketState{at: time.Now()}, f.own.Load() // before the stream's state, which must not be older
	info, err := stream.Info(ctx)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return true
	case err != nil:
		return false
	case f.stateDiffers(info, own):
		return true
	}
	f.b.traits.learn(info)
	l.first, l.last, l.keys = info.State.FirstSeq, info.State.LastSeq, int(info.State.NumSubjects)
	if f.read >= l.last {
		f.reached(l)
		return false
	}
	f.pendingLook = l
	return false
}

// allRead reports whether the follower has passed on everything that the bucket has up to the
// pending look. A consumer learns of a message a little after the stream has stored it, so
// allRead asks the stream too.
func (f *follower) allRead(ctx context.Context, consumer jetstream.Consumer) bool {
	info, err := consumer.Info(ctx)
	if err != nil || info.NumPending > 0 || info.Delivered.Consumer != f.passed {
		return false
	}
	next, err := f.b.get(ctx, getRequest{Seq: max(f.read, f.skipped) + 1, Next: ">"})
	return isNotFound(err) || err == nil && next.Sequence > f.pendingLook.last
}

// reached compares the follower's keys with the number of keys that the bucket had at l. The
// follower has passed on all that was in the bucket then, and nothing later.
func (f *follower) reached(l *bucketState) {
	f.pendingLook = nil
	if !f.synced { // the last of the initial content was removed before it came
		f.sync()
	}
	if len(f.keys) != l.keys {
		for key, revision := range f.keys {
			if revision&^deletedBit < l.first {
				f.lose(key)
			}
		}
	}
	if f.extra = len(f.keys) - l.keys; f.extra != 0 {
		return // inspect reconciles
	}
	f.asOf.Store(&l.at)
	f.reason.Store("")
	if f.current != nil {
		f.current(l.last)
	}
}

func (f *follower) lose(key string) {
	known := f.keys[key]
	delete(f.keys, key)
	if known&deletedBit == 0 {
		f.to.Put(key, &entry{key: key, revision: f.read, at: time.Now(), meta: meta{removal: "PURGE"}})
	}
}

// reconcile loses the keys that the bucket does not have. It returns true when the follower has to
// read everything again: there are too many, none of them can be found, or the bucket has a key that
// the follower should have read. A server that was killed may bring back a message that it had removed.
func (f *follower) reconcile(ctx context.Context) (again bool) {
	names, err := f.names(ctx)
	if err != nil {
		return false
	}
	unread := 0
	for key := range names {
		if _, known := f.keys[key]; known || f.extra > 0 || !utf8.ValidString(key) { // no request can name such a key
			continue
		}
		if unread++; unread > maxChecks {
			break
		}
		e, err := f.b.last(ctx, key)
		switch {
		case err == nil && e.revision <= f.read:
			f.readAgain = true
			return true
		case err != nil && !isNotFound(err):
			return false
		}
	}
	asked, lost := 0, 0
	for key := range f.keys {
		if names[key] || !utf8.ValidString(key) {
			continue
		}
		if asked++; asked > maxChecks {
			break
		}
		// The pages of names are of different times.
		if _, err := f.b.last(ctx, key); isNotFound(err) {
			f.lose(key)
			lost++
		} else if err != nil {
			return false
		}
	}
	if lost > 0 {
		f.look()
	}
	f.readAgain = asked > maxChecks || f.extra > 0 && lost == 0
	return f.readAgain
}

// names reads the bucket's keys, in pages. The client's own Info would never end for keys that
// JSON cannot tell apart.
func (f *follower) names(ctx context.Context) (map[string]bool, error) {
	names := make(map[string]bool)
	for offset := 0; ; {
		p, err := f.subjects(ctx, offset)
		if err != nil {
			return nil, err
		}
		for subject := range p.State.Subjects {
			names[f.b.key(subject)] = true
		}
		if offset += len(p.State.Subjects); offset >= p.Total || len(p.State.Subjects) == 0 {
			return names, nil
		}
	}
}

// subjectsPage is the server's answer to a question about the subjects of a stream.
type subjectsPage struct {
	Error *jetstream.APIError `json:"error"`
	Total int                 `json:"total"`
	State struct {
		Subjects map[string]uint64 `json:"subjects"`
	} `json:"state"`
}

// subjects asks for the stream's subjects, from the one at offset on.
func (f *follower) subjects(ctx context.Context, offset int) (page subjectsPage, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	request := fmt.Sprintf(`{"subjects_filter":">","offset":%d}`, offset)
	reply, err := f.b.nc.RequestWithContext(ctx, f.b.api+"STREAM.INFO."+f.b.stream, []byte(request))
	if err != nil {
		return page, err
	}
	if err := json.Unmarshal(reply.Data, &page); err != nil {
		return page, err
	}
	if page.Error != nil {
		return page, page.Error
	}
	return page, nil
}
