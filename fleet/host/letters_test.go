package host_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// picky rejects messages until it is fixed, and then returns their data and their key.
func picky(r *rig, id string) (req host.Spec, fixed *atomic.Bool) {
	fixed = new(atomic.Bool)
	req = r.native(id, func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if !fixed.Load() {
			return nil, engine.Reject(fmt.Sprintf("order %s is not there", m.Data))
		}
		return text(handled(string(m.Data), m.Header[host.HeaderKey][0])), nil
	})
	return req, fixed
}

// handled is the output of a picky worker: a large message does not fit into it.
func handled(data, key string) string { return fmt.Sprintf("%.40s (%d) %s", data, len(data), key) }

func (r *rig) keyed(subject, data string) {
	r.t.Helper()
	_, err := r.js.PublishMsg(r.t.Context(), &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{host.HeaderKey: {"k"}, "Nats-Other": {"x"}}})
	must(r.t, err)
}

// TestEditedLetter checks that an edited letter is handled with the new data and its own
// headers, that its worker gets it and no other, and that nothing is left behind, also when
// the letter does not fit into one message. New data that does not is refused first.
func TestEditedLetter(t *testing.T) {
	// The largest message that NATS takes: it does not fit together with the header that says for
	// whom it is.
	large := strings.Repeat("y", 1<<20-60)
	for what, c := range map[string]struct{ data, edited string }{
		"small":   {"17", "18"},
		"binary":  {"17", "\x00\xff\xfe"},
		"empty":   {"17", ""},
		"smaller": {large, "19"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			req, fixed := picky(r, "w")
			h := r.startWith(req)
			r.keyed("work.w", c.data)
			d := r.letters(h, "w", 1)[0]
			whole, err := h.DeadLetter(t.Context(), "w", d.Seq)
			if err != nil || string(whole.Data) != c.data || whole.Header[host.HeaderKey][0] != "k" || whole.Message != d.Message {
				t.Fatalf("the whole letter: %v, %v", whole, err)
			}
			fixed.Store(true)
			if _, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte(large)); !errors.Is(err, host.ErrInvalid) {
				t.Errorf("an edit that is too large: %v", err)
			}
			was, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte(c.edited))
			if err != nil || string(was.Data) != c.data {
				t.Fatalf("edit: %v", err)
			}
			r.wantOutputs("out.w", handled(c.edited, "k"))
			if _, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte("again")); !errors.Is(err, host.ErrNoLetter) {
				t.Errorf("a second edit: %v", err)
			}
			r.eventually("nothing is left behind", func() bool { return r.stored() == 0 })
		})
	}
}

// stored returns how many messages the stream of dead letters has.
func (r *rig) stored() uint64 {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), "HOST_DEAD")
	must(r.t, err)
	info, err := s.Info(r.t.Context())
	must(r.t, err)
	return info.State.Msgs
}

// TestTwoEditsAtOnce checks that of two edits of one letter one is handled, and the other
// caller learns that.
func TestTwoEditsAtOnce(t *testing.T) {
	r := newRig(t)
	req, fixed := picky(r, "w")
	h := r.startWith(req)
	const letters, callers = 5, 4
	for i := range letters {
		r.keyed("work.w", fmt.Sprint(i))
	}
	found := r.letters(h, "w", letters)
	fixed.Store(true)
	var won sync.Map // the data that each winner has published
	var all sync.WaitGroup
	for _, d := range found {
		for c := range callers {
			all.Go(func() {
				data := fmt.Sprintf("%s by %d", d.Data, c)
				_, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte(data))
				switch {
				case err == nil:
					if other, twice := won.LoadOrStore(d.Seq, data); twice {
						t.Errorf("two calls have redriven %d: %v and %s", d.Seq, other, data)
					}
				case !errors.Is(err, host.ErrRedriven) && !errors.Is(err, host.ErrNoLetter):
					t.Errorf("the loser: %v", err)
				}
			})
		}
	}
	all.Wait()
	var want []string
	for _, d := range found {
		data, ok := won.Load(d.Seq)
		if !ok {
			t.Fatalf("no call has redriven %d", d.Seq)
		}
		want = append(want, handled(data.(string), "k"))
	}
	r.eventually("each is handled once", func() bool { return len(r.outputs("out.w")) >= letters })
	got := strings.Join(r.outputs("out.w"), "\n")
	for _, w := range want {
		if strings.Count(got, w) != 1 || len(r.outputs("out.w")) != letters {
			t.Errorf("%s is not there once: %s", w, got)
		}
	}
}

// TestRedriveAtOnce checks that two redrives of all letters at one time handle each once,
// fail neither, and count each once together.
func TestRedriveAtOnce(t *testing.T) {
	r := newRig(t)
	req, fixed := picky(r, "w")
	h := r.startWith(req)
	const letters = 12
	for i := range letters {
		r.keyed("work.w", fmt.Sprint(i))
	}
	r.letters(h, "w", letters)
	fixed.Store(true)
	var n atomic.Int64
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			done, err := h.Redrive(t.Context(), "w")
			if n.Add(int64(done)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n.Load() != letters {
		t.Errorf("the calls count %d of %d", n.Load(), letters)
	}
	r.eventually("each is handled", func() bool { return len(r.outputs("out.w")) >= letters })
	if got := r.outputs("out.w"); len(got) != letters {
		t.Errorf("%d messages were handled %d times", letters, len(got))
	}
}

// TestDiscard checks that a discard removes what was chosen and nothing else, with what is
// stored beside a letter, and that a dry run removes nothing.
func TestDiscard(t *testing.T) {
	r := newRig(t)
	req, fixed := picky(r, "w")
	other, _ := picky(r, "other")
	h := r.startWith(req, other)
	for _, data := range []string{"1", "2", strings.Repeat("x", 1<<20-60), "4"} {
		r.keyed("work.w", data)
	}
	r.keyed("work.other", "5")
	found := r.letters(h, "w", 4)
	theirs := r.letters(h, "other", 1)[0].Seq
	first, large := found[0].Seq, found[2].Seq
	for _, c := range []struct {
		dry  bool
		seqs []uint64
		want int
		left int
	}{
		{true, nil, 4, 4}, {true, []uint64{first, 0, 1 << 40, theirs, first}, 1, 4}, {false, []uint64{first, large, theirs}, 2, 2}, {false, []uint64{first}, 0, 2}, {false, nil, 2, 0}, {false, nil, 0, 0},
	} {
		if n, err := h.Discard(t.Context(), "w", c.dry, c.seqs...); err != nil || n != c.want {
			t.Errorf("discard %v, dry %v: %d, %v, want %d", c.seqs, c.dry, n, err, c.want)
		}
		if left := len(r.letters(h, "w", c.left)); left != c.left {
			t.Errorf("after %v: %d are left, want %d", c, left, c.left)
		}
	}
	if n := r.stored(); n != 1 {
		t.Errorf("%d messages are stored, want the letter of the other worker", n)
	}
	fixed.Store(true)
	if n, err := h.Redrive(t.Context(), "w"); n != 0 || err != nil {
		t.Errorf("redrive of nothing: %d, %v", n, err)
	}
	must(t, h.Delete(t.Context(), "other"))
	if n, err := h.Discard(t.Context(), "other", false); err != nil || n != 1 {
		t.Errorf("letters of a worker that is deleted: %d, %v", n, err)
	}
	for _, dry := range []bool{true, false} {
		if n, err := h.Discard(t.Context(), "other", dry); n != 0 || !errors.Is(err, host.ErrNotFound) {
			t.Errorf("neither a worker nor letters: %d, %v", n, err)
		}
	}
	if list, err := h.DeadLetters(t.Context(), "other", 0, 1); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("neither a worker nor letters: %v, %v", list, err)
	}
}

// TestDryRunOfManyLetters checks that a dry run counts letters from their headers, with few
// requests.
func TestDryRunOfManyLetters(t *testing.T) {
	r := newRig(t)
	h := r.start("h")
	const letters = 2000
	seqs := make([]uint64, letters)
	for i := range seqs {
		seqs[i] = uint64(i + 1)
		_, err := r.js.PublishMsgAsync(&nats.Msg{Subject: "$host.dead.t-.w", Data: make([]byte, 10_000)})
		must(t, err)
	}
	<-r.js.PublishAsyncComplete()
	var asked atomic.Int64
	sub, err := r.js.Conn().Subscribe("$JS.API.>", func(m *nats.Msg) {
		if strings.HasSuffix(m.Subject, ".HOST_DEAD") || strings.Contains(m.Subject, ".HOST_DEAD.") {
			asked.Add(1)
		}
	})
	must(t, err)
	defer func() { must(t, sub.Unsubscribe()) }()
	before := r.js.Conn().Stats().InBytes
	for _, c := range []struct {
		seqs []uint64
		want int
	}{{nil, letters}, {seqs, letters}, {seqs[10:20], 10}, {[]uint64{letters + 1}, 0}} {
		if n, err := h.Discard(t.Context(), "w", true, c.seqs...); err != nil || n != c.want {
			t.Errorf("a dry run of %d letters: %d, %v", c.want, n, err)
		}
	}
	if n, size := asked.Load(), r.js.Conn().Stats().InBytes-before; n > 60 || size > 3_000_000 {
		t.Errorf("four dry runs need %d requests and %d bytes", n, size)
	}
	if n, err := h.Discard(t.Context(), "w", false, seqs[10:20]...); err != nil || n != 10 || r.stored() != letters-10 {
		t.Errorf("discard: %d, %v, %d are left", n, err, r.stored())
	}
}

// TestLetterGroups checks that letters whose reasons differ in numbers are one group.
func TestLetterGroups(t *testing.T) {
	r := newRig(t)
	w := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		return nil, engine.Reject(string(m.Data))
	})
	h := r.startWith(w)
	r.publish("work.w", "order 17 of 2026 is late", "no customer 'a'", "order 18 of 2027 is late", "order 1.5 of 3 is late", "no customer 'b'", "no customer 'a'")
	found := r.letters(h, "w", 6)
	groups, err := h.LetterGroups(t.Context(), "w")
	must(t, err)
	got := ""
	for _, g := range groups {
		got += fmt.Sprintln(len(g.Seqs), g.Name, "|", g.Reason)
		if g.First.After(g.Last) || g.First.IsZero() {
			t.Errorf("%s is from %v to %v", g.Name, g.First, g.Last)
		}
	}
	want := "3 rejected: order # of # is late | rejected: order 1.5 of 3 is late\n2 rejected: no customer 'a' | rejected: no customer 'a'\n1 rejected: no customer 'b' | rejected: no customer 'b'\n"
	if got != want || groups[0].Seqs[0] != found[0].Seq {
		t.Errorf("groups:\n%s want\n%s", got, want)
	}
	if groups, err := h.LetterGroups(t.Context(), "none"); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("no worker: %v, %v", groups, err)
	}
}

func TestGroupOf(t *testing.T) {
	for reason, want := range map[string]string{
		"":       "",
		"a\nb 7": "a b #",
		"id 4f9c2d1a-0b3e-4c6d-8e7f-0123456789ab, sha 9f86d081884c7d659a2feaa0c55ad015": "id #, sha #",
		"deadbeef and café 3,5": "deadbeef and café #,#",
	} {
		if got := host.GroupOf(reason); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
	if got := host.GroupOf(strings.Repeat("é", 500)); len(got) > 240 || host.GroupOf(got) != got {
		t.Errorf("a long reason: %d bytes", len(got))
	}
	// Long reasons that differ at their end are two groups, and numbers still do not count.
	long := strings.Repeat("é 7 ", 200)
	one, two, same := host.GroupOf(long+"one 1"), host.GroupOf(long+"two 1"), host.GroupOf(long+"one 2")
	if one == two || one != same || len(one) > 240 || host.GroupOf(one) != one || !strings.HasPrefix(one, "é # é #") {
		t.Errorf("long reasons: %q, %q, %q", one, two, same)
	}
	if got := host.GroupOf("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("a reason that is not UTF-8: %q", got)
	}
}

// TestALetterThatIsStoredLaterIsCounted has a server that takes no dead letter at first. The letter is
// counted once, for the version that gave up the message, also when the worker has other code by then.
func TestALetterThatIsStoredLaterIsCounted(t *testing.T) {
	var log lockedBuffer
	r := newRig(t)
	r.tune = func(c *host.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: []byte("def handle(message): reject('never')")})
	stream, err := r.js.Stream(t.Context(), "HOST_DEAD")
	must(t, err)
	away := stream.CachedInfo().Config
	away.Subjects = []string{"away.>"}
	_, err = r.js.UpdateStream(t.Context(), away)
	must(t, err)
	r.publish("work.w", "bad")
	r.eventually("the server refuses the letter", func() bool {
		return strings.Contains(log.String(), "store the dead letter")
	})
	must(t, h.LoadCodeFromContent(t.Context(), "w", prefix("")))
	_, err = r.js.UpdateStream(t.Context(), stream.CachedInfo().Config)
	must(t, err)
	r.publish("work.w", "good")
	r.wantOutputs("out.w", "good")
	r.letters(h, "w", 1)
	want := []host.Tally{{Worker: "w", Generation: 1, Failed: 1, DeadLetters: 1}, {Worker: "w", Generation: 2, Succeeded: 1}}
	r.eventually(fmt.Sprintf("the counts are %+v", want), func() bool { return slices.Equal(h.Tallies(), want) })
}
