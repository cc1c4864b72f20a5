package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Every state, event and rule that lists show is explained, and no other.
func TestEveryWordIsExplained(t *testing.T) {
	want := map[string][]string{"probe": {string(health.Up), string(health.Down), string(health.Unknown)}}
	for _, s := range lifecycle.Phases().Phases() {
		want["phase"] = append(want["phase"], string(s))
	}
	for _, s := range worker.Transitions().Phases() {
		want["unit"] = append(want["unit"], string(s))
	}
	for _, s := range host.States().Phases() {
		want["worker"] = append(want["worker"], string(s))
	}
	for _, r := range diagnosis.Rules {
		want["rule"] = append(want["rule"], r.Name)
	}
	got := map[string][]string{}
	for _, m := range explained() {
		if m.means == "" || !strings.HasSuffix(m.means, ".") {
			t.Errorf("%s %s means %q", m.kind, m.name, m.means)
		}
		if slices.Contains(got[m.kind], m.name) {
			t.Errorf("%s %s is explained twice", m.kind, m.name)
		}
		got[m.kind] = append(got[m.kind], m.name)
	}
	for kind, names := range want {
		slices.Sort(names)
		slices.Sort(got[kind])
		if !slices.Equal(names, got[kind]) {
			t.Errorf("%s: %q are explained, want %q", kind, got[kind], names)
		}
	}
	// What the rules and the table of events make of an event has to be explained.
	for _, end := range got["end"] {
		if e := (&operatorv1.Event{Kind: "exit", To: end}); (tone(e) == bad) != diagnosis.Bad(e) {
			t.Errorf("an end that is %s has another colour than its rule", end)
		}
	}
	for word, says := range map[string]string{"pending": "backoff", "out-of-memory": "memory ran out", "lost": "without a word", "stopped": "It ended cleanly"} {
		if code, out := ctl(t, "http://127.0.0.1:1", "explain", word); code != exitOK || !strings.Contains(out, says) {
			t.Errorf("explain %s: %d %s", word, code, out)
		}
	}
	if code, out := ctl(t, "http://127.0.0.1:1", "explain", "Pendin"); code != exitNotFound || !strings.Contains(out, "did you mean Pending?") {
		t.Errorf("a typo: %d %s", code, out)
	}
}
