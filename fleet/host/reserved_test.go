package host_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// Code cannot publish to topics through which a message acts upon the server or the
// hosts: its connection is the host's, which may delete streams and write every state.
func TestCodeCannotActThroughReservedTopics(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "bystander", Topic: "work.b", OutputTopic: "out.b", Code: prefix("b")})
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: []byte(`
def handle(message):
    return {"topic": message.text, "data": ""}
`)})
	topics := []string{
		"$JS.API.STREAM.PURGE.WORK", "$JS.API.STREAM.DELETE.HOST_STATE", "$KV.HOST_WORKERS.bystander", "$KV.HOST_MEMBERS.z", "$SYS.REQ.SERVER.PING",
		"$host.state.w-bystander.fence", "$host.log.w-bystander", "$host.code.bystander", "$host.dead.bystander",
		"$host.lines.bystander", "$host.held.w-w", "$host.body.x", "$host.ask.activity",
		"$other.state.w-w.fence", "$other.dead.t-.w", "$other.log.w-w", // of another fleet, which may come later
	}
	r.publish("work.w", topics...)
	r.eventually("each is a dead letter", func() bool {
		letters, err := h.DeadLetters(t.Context(), "w", 1, 100)
		must(t, err)
		for _, l := range letters {
			if !strings.Contains(l.Reason, "not for workers") {
				t.Fatalf("the reason of %s is %q", l.Data, l.Reason)
			}
		}
		return len(letters) == len(topics)
	})
	if letters, err := h.DeadLetters(t.Context(), "bystander", 1, 100); err != nil || len(letters) > 0 {
		t.Errorf("%d forged letters, %v", len(letters), err)
	}
	r.publish("work.b", "x")
	r.wantOutputs("out.b", "bx")
	for _, topic := range topics {
		_, err := h.Create(t.Context(), host.Spec{ID: "v", MIMEType: "text/x-starlark", Topic: "work.v", OutputTopic: topic, Code: prefix("v")})
		if !errors.Is(err, host.ErrInvalid) {
			t.Errorf("Create with the output topic %s: %v", topic, err)
		}
	}
	create(t, h, host.Spec{ID: "v", Topic: "work.v", OutputTopic: "out.host.state.v", Code: prefix("v")}) // a topic of its own
}
