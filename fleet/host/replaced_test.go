package host_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// The log of the workers is gone, and nothing else: the host says so, makes it again, and its workers
// go on.
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
	r.eventually("the worker goes on", func() bool { return slices.Contains(r.outputs("out.w"), "after") })
	if all := lines.String(); !strings.Contains(all, "slot=w-w") || !strings.Contains(all, "stream not found") {
		t.Errorf("the host's log does not say what is missing:\n%s", all)
	}
}

// A stream of the hosts is gone when a worker writes to it, or is changed: the host makes it again.
func TestHostAfterAStreamWasDeleted(t *testing.T) {
	for what, x := range map[string]struct {
		stream, message string
		update          bool
	}{
		"state, at a write":    {"HOST_STATE", "write", false},
		"state, at an update":  {"HOST_STATE", "after", true},
		"log, at an update":    {"HOST_LOG", "after", true},
		"letters, at a letter": {"HOST_DEAD", "reject", false},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			w := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
				switch string(m.Data) {
				case "write":
					return nil, s.Put(ctx, "k", m.Data)
				case "reject":
					return nil, engine.Reject("never")
				}
				return text(string(m.Data)), nil
			})
			h := r.startWith(w)
			r.publish("work.w", "before")
			r.wantOutputs("out.w", "before")
			must(t, r.js.DeleteStream(t.Context(), x.stream))
			if x.update {
				w.OutputTopic = "out.changed"
				_, err := h.Apply(t.Context(), w)
				must(t, err)
			}
			r.publish("work.w", x.message)
			r.eventually("the stream is there", func() bool {
				_, err := r.js.Stream(t.Context(), x.stream)
				return err == nil
			})
			switch x.message {
			case "write":
				r.eventually("the value is there", func() bool { return r.value(h, "w", "k") == "write" })
			case "reject":
				r.letters(h, "w", 1)
			default:
				r.wantOutputs("out.changed", "after")
			}
		})
	}
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
