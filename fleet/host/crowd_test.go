package host_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// workLimit returns the max_consumers of WORK.
func (r *rig) workLimit() int {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), "WORK")
	must(r.t, err)
	return stream.CachedInfo().Config.MaxConsumers
}

// A stream that has as many consumers as the server allows by default takes more
// workers: the host gives it a max_consumers.
func TestWorkersBeyondTheServersDefault(t *testing.T) {
	// nats-server 2.15.2 has a data race of its own between an update of a stream and the
	// creation of a consumer (fileStore.UpdateConfig, ConsumerStore), so it runs in a
	// process without the race detector's report.
	r := rigOn(t, brokertest.Connect(t, broker.Config{URL: brokertest.StartCluster(t, 1).URL()}), 1)
	h := r.start("a")
	each := make(chan int)
	var creators sync.WaitGroup
	for range 16 {
		creators.Go(func() {
			for i := range each {
				_, err := r.js.CreateConsumer(t.Context(), "WORK", jetstream.ConsumerConfig{Durable: fmt.Sprint("c", i), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true, Replicas: 1})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 1000 {
		each <- i
	}
	close(each)
	creators.Wait()
	if limit := r.workLimit(); limit > 0 {
		t.Fatalf("the stream has a max_consumers of %d", limit)
	}
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			id := fmt.Sprint("w", i)
			_, err := h.Create(t.Context(), host.CreateRequest{ID: id, MIMEType: "text/x-starlark", Topic: "work." + id, OutputTopic: "out." + id, Code: prefix("> ")})
			if err != nil {
				t.Error(err)
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	for i := range 4 {
		r.publish(fmt.Sprint("work.w", i), "x")
		r.wantOutputs(fmt.Sprint("out.w", i), "> x")
	}
	if limit := r.workLimit(); limit < 10_000 {
		t.Errorf("the stream has a max_consumers of %d", limit)
	}
}

// A max_consumers that an operator has set stays, and the error says what to do.
func TestALimitOfConsumersStays(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	_, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 1, Replicas: r.replicas})
	must(t, err)
	create(t, h, host.CreateRequest{ID: "one", Topic: "work.1", Code: prefix("1")})
	_, err = h.Create(t.Context(), host.CreateRequest{ID: "two", MIMEType: "text/x-starlark", Topic: "work.2", Code: prefix("2")})
	if err == nil || !strings.Contains(err.Error(), "the stream's max_consumers is 1: raise it") {
		t.Errorf("Create: %v", err)
	}
	if limit := r.workLimit(); limit != 1 {
		t.Errorf("the stream has a max_consumers of %d", limit)
	}
	_, err = r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 2, Replicas: r.replicas})
	must(t, err)
	create(t, h, host.CreateRequest{ID: "two", Topic: "work.2", Code: prefix("2")})
}

// Of a worker that was deleted nothing stays, once it has been swept: neither its fence nor
// the revisions of its record. A worker that was created again under its id stays.
func TestNothingStaysOfDeletedWorkers(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.CreateRequest{ID: "busy", Topic: "work.busy", Code: prefix(">")})
	for range 33 { // more revisions than the bucket keeps: its marker stays
		must(t, h.StopWorker(t.Context(), "busy"))
		must(t, h.StartWorker(t.Context(), "busy"))
	}
	must(t, h.Delete(t.Context(), "busy"))
	for _, id := range []string{"gone", "again", "other"} {
		create(t, h, host.CreateRequest{ID: id, Topic: "work." + id, OutputTopic: "out." + id, Code: prefix(">")})
		r.publish("work."+id, "1")
		r.wantOutputs("out."+id, ">1")
	}
	must(t, h.Delete(t.Context(), "gone"))
	must(t, h.Delete(t.Context(), "again"))
	create(t, h, host.CreateRequest{ID: "again", Topic: "work.again", OutputTopic: "out.again", Code: prefix("+")})
	must(t, h.Sweep(t.Context()))
	for _, stream := range []string{"KV_HOST_WORKERS", "HOST_STATE", "HOST_LOG", "HOST_CODE", "HOST_LINES"} {
		s, err := r.js.Stream(t.Context(), stream)
		must(t, err)
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		must(t, err)
		for subject := range info.State.Subjects {
			if strings.Contains(subject, "gone") {
				t.Errorf("%s has %s", stream, subject)
			}
		}
	}
	kv, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	if revisions, err := kv.History(t.Context(), "busy"); err != nil || len(revisions) < 64 {
		t.Errorf("%d revisions of a busy worker are left, %v", len(revisions), err)
	}
	for id, want := range map[string][]string{"again": {">1", "+2"}, "other": {">1", ">2"}} {
		r.publish("work."+id, "2")
		r.wantOutputs("out."+id, want...)
	}
	h2 := r.start("b")
	records, err := h2.List(t.Context())
	if err != nil || len(records) != 2 {
		t.Errorf("%d workers, %v", len(records), err)
	}
}
