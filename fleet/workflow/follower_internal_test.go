package workflow

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

// lagging is a consumer that does not know yet that the stream has another message.
type lagging struct {
	jetstream.Consumer
	passed uint64
}

func (c lagging) Info(context.Context) (*jetstream.ConsumerInfo, error) {
	return &jetstream.ConsumerInfo{Delivered: jetstream.SequenceInfo{Consumer: c.passed}}, nil
}

// TestAConsumerThatLagsHidesNoWrite looks at a bucket whose last message the consumer has not
// heard of. The follower has read it all only when the message is gone: otherwise the view would
// drop a write of its own process, and a fresh list lack the entity.
func TestAConsumerThatLagsHidesNoWrite(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	kv, err := b.JetStream().KeyValue(ctx, "NOTES")
	check(t, err)
	_, err = kv.Put(ctx, "x", []byte(`{"id":"x","phase":"a"}`))
	check(t, err)
	own, err := kv.Put(ctx, "y", []byte(`{"id":"y","phase":"a"}`))
	check(t, err)
	s, err := b.JetStream().Stream(ctx, "KV_NOTES")
	check(t, err)
	info := s.CachedInfo()

	f := newBucket(NewManager(b.JetStream(), brokertest.Quiet()), "NOTES").follower(brokertest.Quiet(), func(stream.Item[*entry]) {})
	upTo := uint64(0)
	f.current = func(revision uint64) { upTo = revision }
	f.created, f.synced, f.passed, f.read, f.keys["x"] = info.Created, true, 1, own-1, own-1
	f.keys["z"] = own - 1 // as many keys as the bucket has
	f.pendingLook = &bucketState{at: time.Now(), first: 1, last: own, keys: 2}
	if another := f.compare(ctx, s, lagging{passed: 1}); another || upTo != 0 || f.pendingLook == nil {
		t.Fatalf("with a message to come: another bucket %v, read up to %d", another, upTo)
	}
	check(t, s.Purge(ctx, jetstream.WithPurgeSubject("$KV.NOTES.y")))
	f.reason.Store("no connection") // as after a session that has failed
	if another := f.compare(ctx, s, lagging{passed: 1}); another || upTo != own || f.pendingLook != nil {
		t.Fatalf("with nothing to come: another bucket %v, read up to %d, want %d", another, upTo, own)
	}
	if why := f.trouble(); why != "" {
		t.Errorf("it follows the bucket, and says %q", why)
	}
}

// twoNotes returns a bucket with the keys x and y, and their revisions.
func twoNotes(t *testing.T) (ctx context.Context, kv jetstream.KeyValue, notes *bucket, x, y uint64) {
	t.Helper()
	b := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	kv, err := b.JetStream().KeyValue(ctx, "NOTES")
	check(t, err)
	x, err = kv.Put(ctx, "x", []byte(`{"id":"x","phase":"a"}`))
	check(t, err)
	y, err = kv.Put(ctx, "y", []byte(`{"id":"y","phase":"a"}`))
	check(t, err)
	return ctx, kv, newBucket(NewManager(b.JetStream(), brokertest.Quiet()), "NOTES"), x, y
}

// TestAKeyThatCameBackIsRead has a bucket with a key that the follower does not have. It reads
// everything again when it should have that key, and waits for it otherwise.
func TestAKeyThatCameBackIsRead(t *testing.T) {
	ctx, _, notes, first, last := twoNotes(t)
	f := notes.follower(brokertest.Quiet(), func(stream.Item[*entry]) {})
	f.synced, f.keys["x"], f.extra = true, first, -1
	f.read = first
	if f.reconcile(ctx) || f.readAgain {
		t.Error("it reads everything again for a key that is still to come")
	}
	f.read = last
	if !f.reconcile(ctx) || !f.readAgain {
		t.Error("it never reads a key that is behind it")
	}
}

// TestASubjectOfNoKeyIsNotLost has a bucket with a subject outside its keys, which the stream counts.
func TestASubjectOfNoKeyIsNotLost(t *testing.T) {
	ctx, _, notes, first, last := twoNotes(t)
	s, err := notes.js.Stream(ctx, notes.stream)
	check(t, err)
	c := s.CachedInfo().Config
	c.Subjects = append(c.Subjects, "other.>")
	_, err = notes.js.UpdateStream(ctx, c)
	check(t, err)
	ack, err := notes.js.Publish(ctx, "other.x", nil)
	check(t, err)
	check(t, s.Purge(ctx, jetstream.WithPurgeSubject("$KV.NOTES.y")))
	f := notes.follower(brokertest.Quiet(), func(stream.Item[*entry]) {})
	f.synced, f.extra, f.read = true, 1, ack.Sequence
	f.keys["x"], f.keys["y"], f.keys["other.x"] = first, last, ack.Sequence
	if f.reconcile(ctx) || len(f.keys) != 2 || f.keys["other.x"] == 0 {
		t.Errorf("it has the keys %v", f.keys)
	}
}

// TestAWriteThatTheJournalDoesNotHaveYet is not taken for one that was forgotten: its reaction waits.
func TestAWriteThatTheJournalDoesNotHaveYet(t *testing.T) {
	ctx, kv, notes, first, last := twoNotes(t)
	check(t, kv.Purge(ctx, "x")) // its mark is last+1
	run := hookRun{journal: notes}
	task := &lanes.Task[written]{Key: "x", Value: written{revision: first}}
	if err := run.handle(ctx, task); err != nil {
		t.Errorf("a write that was forgotten: %v", err)
	}
	if run.checkForgotten(ctx, last) == nil {
		t.Error("a write that the journal has got since counts as forgotten")
	}
	task.Value.revision = last + 2
	if err := run.handle(ctx, task); err == nil {
		t.Error("a reaction to a write that is still to come counts as done")
	}
}

// refusing is a bucket that refuses one new key.
type refusing struct {
	jetstream.KeyValue
	refused bool
}

func (kv *refusing) Create(ctx context.Context, key string, value []byte, o ...jetstream.KVCreateOpt) (uint64, error) {
	if !kv.refused {
		kv.refused = true
		return 0, jetstream.ErrNoStreamResponse
	}
	return kv.KeyValue.Create(ctx, key, value, o...)
}

// TestAHookKnowsWhatItHasDone removes a hook's progress, and the first attempt to store it again fails.
func TestAHookKnowsWhatItHasDone(t *testing.T) {
	ctx, kv, notes, first, _ := twoNotes(t)
	store := &hookStore{kv: &refusing{KeyValue: kv}, bucket: notes, by: "me", progress: "progress"}
	known := &hookProgress{revision: 100, Done: lanes.From(first)}
	run := hookRun{r: &registration{bucket: notes}, h: &Hook{}, log: brokertest.Quiet(), journal: notes, store: store, progress: known}
	if run.begin(ctx) == nil {
		t.Fatal("it begins without storing its progress")
	}
	check(t, run.begin(ctx))
	if got := run.progress.Done.Floor(); got != first {
		t.Errorf("it goes on behind write %d, and has done up to %d", got, first)
	}
}

// TestFind stores writes one after the other, and asks after each what became of those that were sent
// on its predecessor. The bucket keeps three of them.
func TestFind(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{{Bucket: "NOTES", History: 3}}})
	notes := newBucket(NewManager(b.JetStream(), brokertest.Quiet()), "NOTES")
	put := func(op string, on int) uint64 { // a negative number is of a program that expects nothing
		msg := &nats.Msg{Subject: "$KV.NOTES.a", Header: nats.Header{}}
		if on >= 0 {
			msg.Header = (&meta{op: op, on: uint64(on), entered: "a", source: TransitionSourceRule}).header()
			msg.Header[headerExpected] = []string{strconv.Itoa(on)}
		}
		ack, err := b.JetStream().PublishMsg(t.Context(), msg)
		if err != nil {
			return 0
		}
		return ack.Sequence
	}
	check := func(when, op string, on, revision uint64, want fate) {
		t.Helper()
		got, is, err := notes.find(t.Context(), "a", &decision{meta: meta{op: op, on: on}})
		if err != nil || is != want || got != revision {
			t.Errorf("%s: %s after %d: fate %d at %d, %v, want %d at %d", when, op, on, is, got, err, want, revision)
		}
	}
	check("nothing is stored", "first", 0, 0, undecided)
	first := put("first", 0)
	check("it is stored", "first", 0, first, landed)
	check("it is stored", "other", 0, 0, superseded)
	check("it is stored", "second", first, 0, undecided)
	if put("other", 0) != 0 {
		t.Error("the server takes a write that was superseded")
	}
	second := put("foreign", -1)
	check("a foreign one follows", "second", first, 0, superseded)
	third := put("third", int(second))
	fourth := put("fourth", int(third)) // the first is gone
	check("the expected one is gone", "third", second, third, landed)
	check("the first is gone", "first", 0, 0, untraceable)
	fifth := put("fifth", int(fourth)) // the second too
	check("the expected one and its successor are gone", "second", first, 0, untraceable)
	check("the expected one is gone, and its successor says what it followed", "other", second, 0, superseded)
	kv, err := b.JetStream().KeyValue(t.Context(), "NOTES")
	if err != nil {
		t.Fatal(err)
	}
	next := fifth
	for range 3 { // another program, which says what it expects
		if next, err = kv.Update(t.Context(), "a", nil, next); err != nil {
			t.Fatal(err)
		}
	}
	check("the expected one is gone, and another program's successor says what it followed", "sixth", fifth, 0, superseded)
}
