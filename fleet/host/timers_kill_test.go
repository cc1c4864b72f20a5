package host_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestTimersSurviveKills kills hosts while their workers' timers come due, and checks
// that each timer has one effect. TestChaos does so for longer, and with servers that end.
func TestTimersSurviveKills(t *testing.T) {
	srv := brokertest.StartCluster(t, 1)
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: srv.URL()}), 1)
	cfg, err := chaosConfig("control", 1)
	must(t, err)
	h, err := host.New(r.js, cfg) // never started: it has only the verbs
	must(t, err)
	t.Cleanup(func() { r.stop(h) })
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: []byte(`
def handle(message):
    if message.timer == None:
        timers.set(message.text, 500, message.text)
        state.put("s/" + message.text, "1")
    else:
        key = "t/" + message.text
        state.put(key, str(int(state.get(key) or "0") + 1))
`)})
	log, err := os.Create(filepath.Join(t.TempDir(), "hosts.log"))
	must(t, err)
	hosts := &fleetOf{t: t, url: srv.URL(), replicas: 1, log: log}
	t.Cleanup(func() {
		if t.Failed() {
			hosts.tell()
		}
		for len(hosts.running) > 0 {
			hosts.end(0, syscall.SIGKILL)
		}
		must(t, log.Close())
	})
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	values := func() map[string]string {
		all := make(map[string]string)
		stream, err := r.js.Stream(t.Context(), "HOST_STATE")
		must(t, err)
		prefix := "$host.state.w-w.kv." + rec.UID + "."
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(prefix+">"))
		must(t, err)
		for subject := range info.State.Subjects {
			if m, err := stream.GetLastMsgForSubject(t.Context(), subject); err == nil {
				all["w "+strings.TrimPrefix(subject, prefix)] = string(m.Data)
			}
		}
		return all
	}
	const each, rounds = 20, 2
	for round := range rounds {
		hosts.start()
		for i := range each {
			n := strconv.Itoa(round*each + i)
			r.say("work.w", n, n)
		}
		r.eventually("the first of them have fired", func() bool {
			for key := range values() {
				n, is := strings.CutPrefix(key, "w t/")
				if i, err := strconv.Atoi(n); is && err == nil && i >= round*each {
					return true
				}
			}
			return false
		})
		hosts.end(0, syscall.SIGKILL)
	}
	hosts.start()
	r.eventually("every message is handled", func() bool {
		n := 0
		for key := range values() {
			if strings.HasPrefix(key, "w s/") {
				n++
			}
		}
		return n == each*rounds
	})
	faults := r.fired(values)
	if all := values(); len(all) != 2*each*rounds {
		faults = append(faults, errors.New("there are "+strconv.Itoa(len(all))+" values"))
	}
	must(t, errors.Join(faults...))
}

// fired waits until every timer that was set has fired, and returns those that have no
// effect or more than one. values are of the keys "ID s/WHAT", which says that the timer
// was set, and "ID t/WHAT", which counts its effects.
func (r *rig) fired(values func() map[string]string) (faults []error) {
	r.t.Helper()
	for most, deadline := -1, time.Now().Add(2*bound); ; time.Sleep(200 * time.Millisecond) { // without any progress
		faults = nil
		all, set, effects := values(), 0, 0
		for key := range all {
			id, what, _ := strings.Cut(key, " ")
			switch kind, name, _ := strings.Cut(what, "/"); kind {
			case "s":
				set++
				if all[id+" t/"+name] != "1" {
					faults = append(faults, fmt.Errorf("the timer %s of %s was set and has %q effects", name, id, all[id+" t/"+name]))
				}
			case "t":
				effects++
				if all[id+" s/"+name] == "" {
					faults = append(faults, fmt.Errorf("the timer %s of %s has fired and was not set by a message that was handled", name, id))
				}
			}
		}
		if effects > most {
			most, deadline = effects, time.Now().Add(2*bound)
		}
		if len(faults) == 0 || time.Now().After(deadline) {
			r.t.Logf("timers: %d set, %d with an effect", set, effects)
			return faults
		}
	}
}
