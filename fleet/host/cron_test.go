package host_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/cron"
	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestScheduleFeedsAWorker has a worker whose topic is a schedule's.
func TestScheduleFeedsAWorker(t *testing.T) {
	r := newRig(t)
	_, err := r.js.CreateStream(t.Context(), cron.Stream("CRON"))
	must(t, err)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: cron.Topic("CRON", "s"), OutputTopic: "out.w", Code: prefix("it is ")})
	must(t, cron.Set(t.Context(), r.js, "CRON", cron.Schedule{Name: "s", Cron: "* * * * * *", Zone: "Asia/Tokyo", Data: []byte("time")}))
	r.eventually("two times", func() bool { return len(r.outputs("out.w")) >= 2 })
	if got := r.outputs("out.w")[0]; got != "it is time" {
		t.Errorf("the output is %q", got)
	}
}
