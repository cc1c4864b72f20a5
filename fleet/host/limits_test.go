package host_test

import (
	"strings"
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

// A host does not change the limits of a stream that is not its own. The error says what to do.
func TestALimitOfConsumersStays(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	_, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 1, Replicas: r.replicas})
	must(t, err)
	create(t, h, host.Spec{ID: "one", Topic: "work.1", Code: prefix("1")})
	_, err = h.Create(t.Context(), host.Spec{ID: "two", MIMEType: "text/x-starlark", Topic: "work.2", Code: prefix("2")})
	if err == nil || !strings.Contains(err.Error(), "set the stream's max_consumers to the number of workers") {
		t.Errorf("Create: %v", err)
	}
	if limit := r.workLimit(); limit != 1 {
		t.Errorf("the stream has a max_consumers of %d", limit)
	}
	_, err = r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>", "out.>"}, MaxConsumers: 2, Replicas: r.replicas})
	must(t, err)
	create(t, h, host.Spec{ID: "two", Topic: "work.2", Code: prefix("2")})
}

// Of a worker that was deleted nothing stays, once it has been swept: neither its fence nor
// the revisions of its record. A worker that was created again under its id stays.
func TestNothingStaysOfDeletedWorkers(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "busy", Topic: "work.busy", Code: prefix(">")})
	for range 33 { // more revisions than the bucket keeps: its marker stays
		must(t, h.StopWorker(t.Context(), "busy"))
		must(t, h.StartWorker(t.Context(), "busy"))
	}
	must(t, h.Delete(t.Context(), "busy"))
	for _, id := range []string{"gone", "again", "other"} {
		create(t, h, host.Spec{ID: id, Topic: "work." + id, OutputTopic: "out." + id, Code: prefix(">")})
		r.publish("work."+id, "1")
		r.wantOutputs("out."+id, ">1")
	}
	must(t, h.Delete(t.Context(), "gone"))
	must(t, h.Delete(t.Context(), "again"))
	create(t, h, host.Spec{ID: "again", Topic: "work.again", OutputTopic: "out.again", Code: prefix("+")})
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
	revisions, err := kv.History(t.Context(), "busy")
	if err != nil || len(revisions) != 1 || revisions[0].Operation() == jetstream.KeyValuePut {
		t.Errorf("%d revisions of a busy worker are left, %v; want its marker", len(revisions), err)
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
