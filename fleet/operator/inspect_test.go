package operator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// An inspector reads the log and the stacks of a real process, over the API and in the
// pages; a viewer does not. Each begin of a reading is in the audit.
func TestInspectorLooksIntoAProcess(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	lines := new(presence.Lines)
	fmt.Fprint(lines, "msg=one\nmsg=<b>two</b>\n")
	id := presence.Announce(app, js, presence.Config{Lines: lines, Log: quiet})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() { app.Stop(nil); <-done }()
	f, err := presence.Open(t.Context(), js, presence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Processes: operator.FromPresence(f), Auth: auth})
	brokertest.Await(t, "the process", func() bool {
		p, err := f.Get(t.Context(), id)
		return err == nil && p.Ready
	})
	path := base + "/processes/" + id
	for _, at := range []string{path + "/logs", path + "/stacks", base + "/ui/processes/" + id + "/logs", base + "/ui/processes/" + id + "/stacks"} {
		if code, _, text := request(t, "GET", at, "", bearer(vicToken)...); code != 403 || !strings.Contains(text, "needs the role inspector") || strings.Contains(text, "msg=") || strings.Contains(text, "goroutine 1") {
			t.Errorf("a viewer reads %s: %d %s", at, code, text)
		}
	}
	code, _, text := request(t, "GET", path+"/logs?limit=1", "", bearer(ivyToken)...)
	if code != 200 || strings.Contains(text, "one") {
		t.Errorf("the last line: %d", code)
	}
	wantText(t, "the last line", text, `"seq":"2"`, `"text":"msg=<b>two</b>"`)
	code, _, text = request(t, "GET", path+"/logs?after=1", "", bearer(ivyToken)...)
	if code != 200 || strings.Count(text, `"seq"`) != 1 {
		t.Errorf("after the first: %d %s", code, text)
	}
	_, _, text = request(t, "GET", path+"/stacks", "", bearer(ivyToken)...)
	wantText(t, "the stacks", text, "goroutine ", "presence.go:")
	_, _, text = request(t, "GET", base+"/ui/processes/"+id+"/logs", "", bearer(ivyToken)...)
	wantText(t, "the page of the log", text, "msg=one\nmsg=&lt;b&gt;two&lt;/b&gt;", "lifecyclectl logs "+id)
	_, _, text = request(t, "GET", base+"/ui/processes/"+id, "", bearer(ivyToken)...)
	wantText(t, "the page of the process", text, id+"/logs", id+"/stacks")
	if strings.Contains(text, "Drain…") {
		t.Error("an inspector is offered to drain")
	}
	if _, _, text = request(t, "GET", base+"/ui/processes/"+id, "", bearer(vicToken)...); strings.Contains(text, id+"/stacks") {
		t.Error("a viewer is offered the stacks")
	}
	if code, _, text := request(t, "GET", path+"/logs?limit=1001", "", bearer(ivyToken)...); code != 400 || !strings.Contains(text, "limit") {
		t.Errorf("too many: %d %s", code, text)
	}
	if code, _, _ := request(t, "POST", path+"/drain", "{}", bearer(ivyToken)...); code != 403 {
		t.Errorf("an inspector drains: %d", code)
	}
	_, _, text = request(t, "GET", base+"/audit?action=GetLogs&who=ivy", "", bearer(ivyToken)...)
	if n := strings.Count(text, `"outcome":"ok"`); n != 2 {
		t.Errorf("the audit has %d begins of reading, want 2: %s", n, text)
	}
}
