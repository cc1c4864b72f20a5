package host_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// The log of the workers is gone, and nothing else: the host says so. Started again it makes the log
// again, and its workers go on.
func TestHostAfterItsLogWasDeleted(t *testing.T) {
	r := newRig(t)
	var lines lockedBuffer
	r.tune = func(c *host.Config) { c.Logger = slog.New(slog.NewTextHandler(&lines, nil)) }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", OutputTopic: "out.w", Code: prefix("")})
	r.publish("work.w", "before")
	r.wantOutputs("out.w", "before")
	must(t, r.js.DeleteStream(t.Context(), "HOST_LOG"))
	r.publish("work.w", "after")
	r.eventually("the host says what it cannot write", func() bool {
		all := lines.String()
		return strings.Contains(all, "its effects cannot be written") && strings.Contains(all, "slot=w-w")
	})
	r.stop(h)
	r.start("b")
	r.eventually("the worker goes on", func() bool { return slices.Contains(r.outputs("out.w"), "after") })
}

// A host outlives a server that comes back with an empty disk: it makes its buckets and streams
// again, and runs the workers that are made then.
func TestHostAfterItsStoreWasReplaced(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	spec := func(id string) host.Spec {
		return host.Spec{ID: id, MIMEType: "text/x-starlark", Topic: "work." + id, Code: []byte("def handle(message):\n    print(message.text)\n")}
	}
	create(t, h, spec("before"))
	_, err := r.js.Publish(t.Context(), "$KV.HOST_WORKERS.unreadable", []byte("not a record"))
	must(t, err)
	r.eventually("the host has the unreadable record", func() bool { return h.Recover(t.Context()) != nil })
	// The host looks at all of them when a bucket is gone: the one of the workers is the last.
	for _, name := range []string{"HOST_STATE", "HOST_LOG", "HOST_LINES", "HOST_CODE", "HOST_DEAD", "KV_HOST_MEMBERS", "KV_HOST_WORKERS"} {
		must(t, r.js.DeleteStream(t.Context(), name))
	}
	r.eventually("the host has its store again", func() bool {
		list, err := h.List(t.Context())
		return err == nil && len(list) == 0 && h.Check(t.Context()) == nil
	})
	r.eventually("the host has forgotten the unreadable record", func() bool { return h.Recover(t.Context()) == nil })
	// The worker of before runs until the host has found out.
	r.eventually("a worker can be made", func() bool {
		_, err := h.Create(t.Context(), spec("after"))
		return err == nil
	})
	r.publish("work.after", "after")
	r.eventually("the worker runs", func() bool {
		lines, err := h.Logs(t.Context(), "after", 0, 10)
		return err == nil && len(lines) == 1 && lines[0].Text == "after"
	})
}
