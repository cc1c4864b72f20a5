package workflow_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

var update = flag.Bool("update", false, "write the files of testdata anew: for a format that no release has")

// storedMessage is a message of a bucket as it is stored, in a file of testdata.
type storedMessage struct {
	Key    string            `json:"key"`
	Header map[string]string `json:"header"`
	Data   string            `json:"data"`
}

// firstFormat has what formatSteps stores in the first format.
var firstFormat = filepath.Join("testdata", "v0.1.0", "missions.json")

// formatSteps writes everything that a record and its headers can have.
func formatSteps(ctx context.Context, r *rig) error {
	at := time.Date(2040, 1, 2, 3, 4, 5, 0, time.UTC)
	count := func(m *Mission) error { m.Count++; return nil }
	for _, step := range []func() error{
		func() error {
			return r.missions.Create(ctx, &Mission{ID: "m1", State: "planning", Org: "acme"}, workflow.Key("create"))
		},
		func() error {
			return r.missions.Transition(ctx, "m1", "flying", workflow.TransitionSourceOperator, "wind: 3 | 50 %\nfine",
				workflow.SetTimer(workflow.Timer{Name: "t 1", At: at, Every: time.Hour, Keep: true}))
		},
		func() error { return r.missions.Update(ctx, "m1", count, workflow.Key("count")) },
		func() error { return r.missions.Create(ctx, &Mission{ID: "m2", State: "landing", Parent: "m1"}) },
		func() error { return r.missions.Fail(ctx, "m2", "no fuel") },
		func() error { return r.missions.Create(ctx, &Mission{ID: "m3", State: "planning"}) },
		func() error { return r.missions.Delete(ctx, "m3") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// formatOf returns what is stored. Ids of operations and times are replaced, since they
// differ from run to run.
func formatOf(ctx context.Context, t *testing.T, s jetstream.Stream) []storedMessage {
	t.Helper()
	var stored []storedMessage
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		msg, err := s.GetMsg(ctx, seq)
		must(t, err)
		m := storedMessage{Key: strings.TrimPrefix(msg.Subject, "$KV.MISSIONS."), Header: map[string]string{}, Data: string(msg.Data)}
		for name := range msg.Header {
			if strings.HasPrefix(name, "Lifecycle") || strings.HasPrefix(name, "KV-") {
				m.Header[name] = msg.Header.Get(name)
			}
		}
		parts := strings.Split(m.Header["Lifecycle"], "|")
		parts[0] = "op." + strconv.FormatUint(seq, 10)
		if since := &parts[7]; *since != "" {
			*since = "1700000000000000000"
		}
		m.Header["Lifecycle"] = strings.Join(parts, "|")
		stored = append(stored, m)
	}
	return stored
}

// TestFormatIsThatOfTheFirstRelease writes what the first release writes. A later release
// may read more, and must go on to write what this one reads.
func TestFormatIsThatOfTheFirstRelease(t *testing.T) {
	ctx := testContext(t)
	r := newRig(t)
	must(t, formatSteps(ctx, r))
	s, err := r.js.Stream(ctx, "KV_MISSIONS")
	must(t, err)
	got, err := json.MarshalIndent(formatOf(ctx, t, s), "", "  ")
	must(t, err)
	if *update {
		must(t, os.WriteFile(firstFormat, append(got, '\n'), 0o600))
	}
	want, err := os.ReadFile(firstFormat)
	must(t, err)
	if strings.TrimSpace(string(want)) != string(got) {
		t.Errorf("stored are\n%s\nwant\n%s", got, want)
	}
}

// TestRecordsOfTheFirstReleaseAreRead puts them into a bucket, and reads and writes them.
func TestRecordsOfTheFirstReleaseAreRead(t *testing.T) {
	ctx := testContext(t)
	data, err := os.ReadFile(firstFormat)
	must(t, err)
	var stored []storedMessage
	must(t, json.Unmarshal(data, &stored))
	b := brokertest.Server(t, broker.Config{Buckets: buckets()})
	for _, m := range stored {
		msg := &nats.Msg{Subject: "$KV.MISSIONS." + m.Key, Header: nats.Header{}, Data: []byte(m.Data)}
		for name, value := range m.Header {
			msg.Header[name] = []string{value}
		}
		_, err := b.JetStream().PublishMsg(ctx, msg)
		must(t, err)
	}
	r := rigOn(t, b)
	if got := listIDs(t, r, workflow.ListOptions{Fresh: true}); got != "m1 m2" {
		t.Errorf("listed %q", got)
	}
	rec, err := r.record(ctx, "m1")
	must(t, err)
	if m, ok := rec.Participant.(*Mission); !ok || m.State != "flying" || m.Count != 1 || m.Org != "acme" || rec.Revision != 3 || rec.Since.UnixNano() != 17e17 {
		t.Errorf("m1 is %+v", rec)
	}
	if len(rec.Timers) != 1 || rec.Timers[0].Name != "t 1" || rec.Timers[0].Every != time.Hour || rec.Timers[0].At.Year() != 2040 {
		t.Errorf("its timers are %+v", rec.Timers)
	}
	for id, want := range map[string]string{
		"m1": "[framework >planning  operator planning>flying wind: 3 | 50 %\nfine]",
		"m2": "[framework >landing  framework landing>failed no fuel]",
		"m3": "[framework >planning  framework planning><deleted> ]",
	} {
		trail, err := r.Trail(ctx, survey, id)
		must(t, err)
		var events []string
		for _, e := range trail.Events {
			events = append(events, fmt.Sprintf("%s %s>%s %s", e.Triggered, e.From, e.To, e.Note))
		}
		if got := fmt.Sprint(events); got != want || trail.Truncated {
			t.Errorf("%s: %s, truncated %v; want %s", id, got, trail.Truncated, want)
		}
	}
	for key, want := range map[string]uint64{"create": 1, "count": 3} {
		if at, landed, err := r.Landed(ctx, survey, "m1", key); at != want || !landed || err != nil {
			t.Errorf("key %s: %d, %v, %v", key, at, landed, err)
		}
	}
	children, err := r.Children(ctx, "m1")
	must(t, err)
	if len(children) != 1 || children[0].EntityID() != "m2" {
		t.Errorf("the children are %v", children)
	}
	r.move(t, "m1", "landing")
	for key, want := range map[string]uint64{"create": 1, "count": 3} { // the write has brought them along
		if at, landed, err := r.Landed(ctx, survey, "m1", key); at != want || !landed || err != nil {
			t.Errorf("after a write: key %s: %d, %v, %v", key, at, landed, err)
		}
	}
}
