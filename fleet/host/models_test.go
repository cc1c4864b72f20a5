package host_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/internal/models"
)

// logged is an entry of a slot's log, or an output: what it is, of which messages.
type logged struct {
	what     string
	messages []int
	at       time.Time
}

// While hosts are killed, stalled past their lease and replaced, the log of a slot and its outputs go along the models.
func TestHostsConformToTheModels(t *testing.T) {
	if testing.Short() && os.Getenv("MODELS") == "" {
		t.Skip("it kills and stalls hosts for 20 seconds: make models runs it, and the long tests")
	}
	site := brokertest.NewSite(t)
	r := rigOn(t, site.Connect(t, broker.Config{}), 1)
	cfg, err := chaosConfig("control", 1)
	must(t, err)
	h, err := host.New(r.js, cfg) // never started: it has only the verbs
	must(t, err)
	t.Cleanup(func() { r.stop(h) })
	create(t, h, host.Spec{ID: "a", Topic: "work.a", OutputTopic: "out.a", Code: []byte(chaosCode)})

	var mu sync.Mutex
	var log, outputs []logged
	follow := func(stream, subject string, note func(jetstream.Msg, *jetstream.MsgMetadata)) {
		c, err := r.js.OrderedConsumer(t.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
		must(t, err)
		cc, err := c.Consume(func(m jetstream.Msg) {
			meta, err := m.Metadata()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			note(m, meta)
		})
		must(t, err)
		t.Cleanup(func() { cc.Stop(); <-cc.Closed() })
	}
	number := func(text []byte) int { // the output of message 7 begins with "7 "
		first, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.Atoi(first)
		if err != nil {
			t.Errorf("an output that is none: %s", text)
		}
		return n
	}
	follow("HOST_LOG", "$host.log.w-a", func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		var e struct {
			Host    string
			Outputs []struct{ Data []byte }
		}
		if err := json.Unmarshal(m.Data(), &e); err != nil {
			t.Errorf("the entry %s: %v", m.Data(), err)
		}
		entry := logged{what: "commits", at: meta.Timestamp}
		if e.Host != "" {
			entry.what = "claims"
		}
		for _, o := range e.Outputs {
			entry.messages = append(entry.messages, number(o.Data))
		}
		log = append(log, entry)
	})
	follow("WORK", "out.a", func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		outputs = append(outputs, logged{"publishes", []int{number(m.Data())}, meta.Timestamp})
	})

	file, err := os.Create(filepath.Join(t.TempDir(), "hosts.log"))
	must(t, err)
	hosts := &fleetOf{t: t, url: site.URL, replicas: 1, log: file}
	t.Cleanup(func() {
		for len(hosts.running) > 0 {
			hosts.end(0, syscall.SIGKILL)
		}
		must(t, file.Close())
	})
	hosts.start()
	hosts.start()
	over := make(chan struct{})
	sent := 0
	var load sync.WaitGroup
	load.Go(func() {
		for ; ; sent++ {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
			}
			if _, err := r.js.Publish(t.Context(), "work.a", []byte(strconv.Itoa(sent))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for round := range 4 {
		time.Sleep(time.Second) // the load needs time to pass on any machine
		if round%2 == 0 {
			hosts.end(0, syscall.SIGKILL)
			hosts.start()
			continue
		}
		stalled := hosts.running[0]
		must(t, stalled.Process.Signal(syscall.SIGSTOP))
		time.Sleep(3 * time.Second) // its lease is 2 s
		must(t, stalled.Process.Signal(syscall.SIGCONT))
	}
	close(over)
	load.Wait()
	r.eventually("every message has its output", func() bool { mu.Lock(); defer mu.Unlock(); return len(outputs) >= sent })
	mu.Lock()
	defer mu.Unlock()
	var hostRecords, relayRecords [][]models.Event
	all := append(slices.Clone(log), outputs...)
	slices.SortStableFunc(all, func(a, b logged) int { return a.at.Compare(b.at) })
	for i := range sent {
		if i < sent-1 {
			hostRecords = append(hostRecords, recordOf(log, i, i+1))
		}
		relayRecords = append(relayRecords, recordOf(all, i))
	}
	models.Conform(t, "host", hostRecords)
	models.Conform(t, "relay", relayRecords)
}

// recordOf returns a record of the size of the models: what concerns these messages of all. Of claims without anything in
// between it has the last, because a host that was replaced before it committed anything is not in the log otherwise. The
// messages are a bit each.
func recordOf(all []logged, messages ...int) (record []models.Event) {
	claims := models.Event{State: "claims"}
	for _, e := range all {
		event := models.Event{State: e.what}
		for bit, m := range messages {
			if slices.Contains(e.messages, m) {
				event.Life |= 1 << bit
			}
		}
		switch {
		case event.Life != 0:
			record = append(record, event)
		case event == claims && (len(record) == 0 || record[len(record)-1] != claims):
			record = append(record, claims)
		}
	}
	if last := len(record) - 1; last > 0 && record[last] == claims {
		record = record[:last]
	}
	return record
}
