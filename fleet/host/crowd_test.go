package host_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
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
	r := newRig(t)
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
