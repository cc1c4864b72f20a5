package workflow_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestTheViewIsTheBucketAfterForeignWrites mixes this library's writes with messages of a
// client that knows nothing of them, and purges. After each round a fresh list must have
// what the bucket has, record by record.
func TestTheViewIsTheBucketAfterForeignWrites(t *testing.T) {
	r := newRig(t, workflow.WithDeadline("planning", "aborted", time.Hour))
	stream, err := r.js.Stream(testContext(t), "KV_MISSIONS")
	must(t, err)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &stranger{rig: r, stream: stream, rnd: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // a test
	rounds := 60
	if testing.Short() {
		rounds = 8
	}
	for range rounds {
		for range 40 {
			s.step(t)
		}
		s.compare(t)
		if t.Failed() {
			return
		}
	}
}

type stranger struct {
	*rig
	stream jetstream.Stream
	rnd    *rand.Rand
}

const strangersEntities = 12

func (s *stranger) pick(of ...string) string { return of[s.rnd.IntN(len(of))] }

// step makes one write, of either kind. Its error does not matter.
func (s *stranger) step(t *testing.T) {
	ctx, id := testContext(t), fmt.Sprint("m", s.rnd.IntN(strangersEntities))
	switch s.rnd.IntN(8) {
	case 0, 1, 2:
		_ = s.b.Conn().PublishMsg(s.message(id))
	case 3:
		_ = s.missions.Create(ctx, &Mission{ID: id, State: "planning"}, workflow.Key(s.pick("", "a", "b")))
	case 4:
		_ = s.missions.Update(ctx, id, func(m *Mission) error { m.Count++; return nil }, workflow.Key(s.pick("", "a", "c")))
	case 5:
		_ = s.missions.Transition(ctx, id, s.pick("flying", "landing", "aborted"), "rule", "\xff\r\n|,")
	case 6:
		_ = s.missions.Delete(ctx, id)
	default:
		if s.rnd.IntN(4) == 0 {
			_ = s.stream.Purge(ctx, jetstream.WithPurgeSubject("$KV.MISSIONS.mission."+id))
			return
		}
		_, _ = s.missions.History(ctx, id)
		_, _, _ = s.Landed(ctx, survey, id, "a")
		_, _ = s.Ancestors(ctx, id)
	}
}

// message is one that no program of this library sends.
func (s *stranger) message(id string) *nats.Msg {
	msg := nats.NewMsg("$KV.MISSIONS." + s.pick("mission.", "mission.", "mission.", "", "x.") + s.pick(id, id, id, "\xff"+id, `"`, "*"))
	record := `{"entity_id":"` + id + `","phase":"planning"`
	msg.Data = []byte(s.pick(
		record+"}", record+`,"PHASE":"`+s.pick("landing", "nowhere", "", "\xff", `\ud800`)+`","parent":"`+id+`"}`, record+`,"entity_id":"other"}`,
		"", "null", "[]", "{", "\xef\xbb\xbf{}", strings.Repeat(`{"a":`, 10_100), record+`,"deep":`+strings.Repeat("[", 9_990)+strings.Repeat("]", 9_990)+"}",
		record+`,"count":1e400}`, record+`,"replica_count":4294967296}`, record+`,"more":123456789012345678901234567890}`, record+`,"big":"`+strings.Repeat("x", 100_000)+`"}`,
	))
	for range s.rnd.IntN(3) {
		msg.Header.Add(s.pick("Lifecycle", "Lifecycle", "Lifecycle", "Lifecycle-Keys", "Lifecycle-Timers", "Lifecycle-Fired", "Lifecycle-Note",
			"KV-Operation", "Nats-Marker-Reason", "Nats-Rollup"),
			s.pick(survey, "other", "", "PURGE", "DEL", "sub", "-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615", "99", "%zz", "||||||||", "a|b",
				"a|drone-survey|1|2|flying|x|rule|5", "a|drone-survey|1||flying||rule|", "a|other|1|-1|%zz|x|y|-9223372036854775808", "a|drone-survey|-1||||||", `[{"name":"t","at":"2020-01-01T00:00:00Z","every":5}]`, "x,y@,@,@1,,", "MaxAge"))
	}
	return msg
}

// compare compares a fresh list with the bucket.
func (s *stranger) compare(t *testing.T) {
	ctx := testContext(t)
	s.create(t, "last"+nextID(), "planning") // when it is stored, what was sent before is too
	page, err := s.Query(ctx, survey, workflow.ListOptions{Fresh: true})
	must(t, err)
	have := make(map[string]string)
	for _, rec := range page.Records {
		have[rec.Key] = fmt.Sprint(rec.Phase, rec.Revision, rec.Since.UnixNano(), rec.Timers)
	}
	bad, err := s.Degraded(ctx, survey)
	must(t, err)
	for _, rec := range bad {
		have[rec.Key] += " degraded"
	}
	for i := range strangersEntities {
		id, want := fmt.Sprint("m", i), ""
		rec, err := s.record(ctx, id)
		switch {
		case errors.Is(err, workflow.ErrEntityNotFound):
		case err != nil:
			t.Errorf("%s: %v", id, err)
		case rec.Degraded != nil && strings.Contains(rec.Degraded.Error(), "an entity of workflow"): // another's
		default:
			if rec.Participant != nil {
				want = fmt.Sprint(rec.Phase, rec.Revision, rec.Since.UnixNano(), rec.Timers)
			}
			if rec.Degraded != nil {
				want += " degraded"
			}
		}
		if got := have[rec.Key]; rec.Key != "" && got != want || rec.Key == "" && have["mission."+id] != "" {
			t.Errorf("%s: the view has %q and the bucket %q (%v)", id, have["mission."+id], want, rec.Degraded)
		}
	}
}
