package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
	settings := func() []presence.Setting {
		return []presence.Setting{{Key: "addr", Value: `":1"`, Source: "service.yaml:3", Lost: []string{"flag -x: 9"}}, {Key: "db.password", Value: "hunter2", Source: "default"}, {Key: "poll", Value: "1s", Source: "default", InForce: "9s"}}
	}
	id := presence.Announce(app, js, presence.Config{Lines: lines, Settings: settings, Logger: quiet})
	runs := make(chan int, 10)
	app.Supervise("poller", func(ctx context.Context) error { runs <- 1; <-ctx.Done(); return ctx.Err() }, lifecycle.DefaultBackoff())
	app.OnReload("flags", func(context.Context) error { return errors.New("line 3: the flag is unknown") })
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	defer func() { app.Stop(nil); <-done }()
	f, err := presence.Open(t.Context(), js, presence.Config{CommandTimeout: time.Minute})
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
	for _, at := range []string{path + "/logs", path + "/stacks", path + "/config", base + "/ui/processes/" + id + "/config", base + "/ui/processes/" + id + "/logs", base + "/ui/processes/" + id + "/stacks"} {
		if code, _, text := request(t, "GET", at, "", bearer(vicToken)...); code != 403 || !strings.Contains(text, "needs the role inspector") || strings.Contains(text, "msg=") || strings.Contains(text, "service.yaml") || strings.Contains(text, "goroutine 1") {
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
	wantText(t, "the stacks", text, "goroutine ", "area_processes.go:")
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

	for range 2 { // one that only says that it goes on
		request(t, "GET", path+"/logs?after=18446744073709551615&limit=1000", "", bearer(adaToken)...)
	}
	_, _, text = request(t, "GET", base+"/audit?action=GetLogs&who=ada", "", bearer(ivyToken)...)
	if n := strings.Count(text, `"outcome":"ok"`); n != 1 {
		t.Errorf("the audit has %d begins of reading by ada, want 1: %s", n, text)
	}

	// The configuration, with a reload that was refused.
	_ = app.Reload(t.Context())
	brokertest.Await(t, "an answer", func() bool { // a machine that is suspended for a second gets none
		_, _, text = request(t, "GET", path+"/config", "", bearer(ivyToken)...)
		return !strings.Contains(text, "did not return")
	})
	wantText(t, "the configuration", text, `"key":"addr"`, `"source":"service.yaml:3"`, `"lost":["flag -x: 9"]`, `"inForce":"9s"`, `"[secret]"`, "the flag is unknown")
	_, _, page := request(t, "GET", base+"/ui/processes/"+id+"/config", "", bearer(ivyToken)...)
	wantText(t, "the page of the configuration", page, "yaml:<wbr>3", "in place of flag", "until the next start of the process: <code class=\"value\">9s", "The last reload of flags was refused", "lifecyclectl processes config "+id)
	_, _, given := request(t, "GET", base+"/ui/processes/"+id+"/config?given=1&contains=service", "", bearer(ivyToken)...)
	if strings.Contains(text+page, "hunter2") || strings.Contains(given, "poll") || !strings.Contains(given, "addr") {
		t.Errorf("the configuration shows a secret, or too much: %s %s", text, given)
	}

	// A unit is restarted by an operator only, from the page too, and both ends know it.
	<-runs
	body := `{"unit":"poller","reason":"it is stuck"}`
	if code, _, _ := request(t, "POST", path+"/restart-unit", body, bearer(ivyToken)...); code != 403 {
		t.Errorf("an inspector restarts a unit: %d", code)
	}
	if code, _, text := request(t, "POST", path+"/restart-unit", body, bearer(adaToken)...); code != 200 || !strings.Contains(text, `"phase":"running"`) {
		t.Errorf("an operator restarts a unit: %d %s", code, text)
	}
	<-runs
	for unit, says := range map[string]string{"presence": "nothing supervises it", "x": "no child of that name", "": "unit"} {
		if code, _, text := request(t, "POST", path+"/restart-unit", `{"unit":"`+unit+`"}`, bearer(adaToken)...); code != 400 && code != 409 || !strings.Contains(text, says) {
			t.Errorf("the unit %q: %d %s", unit, code, text)
		}
	}
	brokertest.Await(t, "the button", func() bool {
		_, _, text := request(t, "GET", base+"/ui/processes/"+id, "", bearer(adaToken)...)
		return strings.Contains(text, "/ui/act/restart-unit?id="+id+"&amp;unit=poller") && strings.Contains(text, "by ada, not by a failure") && !strings.Contains(text, "unit=presence")
	})
	if _, _, text := request(t, "GET", base+"/ui/processes/"+id, "", bearer(ivyToken)...); strings.Contains(text, "restart-unit") {
		t.Error("an inspector is offered to restart a unit")
	}
	_, _, text = request(t, "GET", base+"/ui/act/restart-unit?id="+id+"&unit=presence", "", bearer(adaToken)...)
	wantText(t, "the question about a unit that is not supervised", text, "It cannot be done")
	form := []string{"Authorization", "Bearer " + adaToken, "Content-Type", "application/x-www-form-urlencoded"}
	if code, _, text := request(t, "POST", base+"/ui/act/restart-unit", "id="+id+"&unit=poller&reason=again", form...); code != 303 && code != 200 {
		t.Errorf("from the page: %d %s", code, text)
	}
	<-runs
	_, _, text = request(t, "GET", base+"/audit?action=RestartUnit", "", bearer(ivyToken)...)
	wantText(t, "the audit", text, `"detail":"poller: it is stuck"`, `"detail":"poller: again"`, `"target":"process/`+id+`"`, `permission_denied`, `failed_precondition`)
}
