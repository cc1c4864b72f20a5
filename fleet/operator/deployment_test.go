package operator_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// TestDeploymentBySpec checks that a worker has every field of the spec that was applied,
// and that its log, its state and a test of its code can be had, in RPC and in REST.
func TestDeploymentBySpec(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"orders.>"}}}}).JetStream()
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("OPERATOR_TEST_TOKEN", "hunter2-4711")
	h, err := host.New(js, host.Config{Engines: engines, Logger: quiet, RetryBase: time.Millisecond, MaxRetries: 1, Grants: map[string]host.Grant{
		"acme": {Env: map[string]string{"REGION": "north"}, Secrets: map[string]string{"TOKEN": "env:OPERATOR_TEST_TOKEN"}, HTTP: host.HTTPGrant{
			Allow:   []string{"https://*.example.com/*"},
			Secrets: map[string]host.HTTPSecret{"TOKEN": {Header: "Authorization", URL: "https://*.example.com/*"}},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			t.Error(err)
		}
	}()
	base, _ := serve(t, operator.Config{Workers: operator.FromHost(h), Timeout: time.Minute})
	c := operatorv1connect.NewWorkerServiceClient(http.DefaultClient, base)
	ctx := t.Context()
	code := `
def handle(m):
    print("got", m.text, env["TOKEN"])
    for i in range(3):
        state.put("k%d" % i, m.text)
    timers.set("later", at = 253402300799000, data = m.text)
    return env["REGION"]
`
	spec := &operatorv1.WorkerSpec{
		Id: "w", Tenant: "acme", MimeType: "text/x-starlark", Topic: "orders.new", Group: "g", OutputTopic: "orders.done", Key: "Customer",
		Limits: &operatorv1.Limits{Time: durationpb.New(time.Minute), Load: durationpb.New(time.Minute), Memory: 64 << 20, Output: 1000, Outputs: 5},
		Env:    []string{"REGION"}, Secrets: []string{"TOKEN"}, Rate: &operatorv1.Rate{Messages: 1000, Per: durationpb.New(time.Minute), Burst: 1000}, Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte(code)}},
		Rollout: &operatorv1.Rollout{Canary: 10, For: durationpb.New(time.Hour), Messages: 7, Margin: 3},
		Http:    &operatorv1.HTTP{Allow: []string{"https://api.example.com/v1/*"}, Secrets: []string{"TOKEN"}},
	}
	for i, fields := 0, spec.ProtoReflect().Descriptor().Fields(); i < fields.Len(); i++ {
		if !spec.ProtoReflect().Has(fields.Get(i)) {
			t.Fatalf("this test has no value for %s of the spec", fields.Get(i).Name())
		}
	}
	plan, err := c.ApplyWorker(ctx, &operatorv1.ApplyWorkerRequest{Spec: spec, DryRun: true})
	if err != nil || !plan.GetCreated() || plan.GetWorker() != nil || len(plan.GetChanges()) != 21 {
		t.Errorf("a dry run: %v, %v", plan, err)
	}
	done, err := c.ApplyWorker(ctx, &operatorv1.ApplyWorkerRequest{Spec: spec})
	if err != nil || !done.GetCreated() {
		t.Fatalf("apply: %v, %v", done, err)
	}
	want := proto.CloneOf(spec)
	want.Code = &operatorv1.Code{Digest: done.GetWorker().GetDigest()}
	if !proto.Equal(done.GetWorker().GetSpec(), want) {
		t.Errorf("the worker has the spec %v, want %v", done.GetWorker().GetSpec(), want)
	}
	if again, err := c.ApplyWorker(ctx, &operatorv1.ApplyWorkerRequest{Spec: spec}); err != nil || again.GetCreated() || len(again.GetChanges()) != 0 {
		t.Errorf("a second time: %v, %v", again, err)
	}
	_, _, body := request(t, "POST", base+"/workers:apply", `{"dryRun": true, "spec": {"id": "w", "tenant": "acme", "mimeType": "text/x-starlark", "topic": "orders.new", "group": "g", "key": "Customer",
		"env": ["REGION"], "code": {"content": "ZGVmIGhhbmRsZShtKTogcGFzcwo="}}}`)
	wantText(t, "a plan over REST", strings.ReplaceAll(body, ", ", ","), `"field":"code"`, `"field":"outputTopic"`, `"from":"orders.done"`, `"field":"secrets"`)
	for reason, s := range map[string]*operatorv1.WorkerSpec{
		operator.ReasonNotGranted: {Id: "o", Tenant: "other", MimeType: "text/x-starlark", Topic: "orders.new", Secrets: []string{"TOKEN"}, Code: spec.GetCode()},
		operator.ReasonInvalid:    {Id: "w", Tenant: "other", MimeType: "text/x-starlark", Topic: "orders.new", Code: spec.GetCode()},
	} {
		_, err := c.ApplyWorker(ctx, &operatorv1.ApplyWorkerRequest{Spec: s})
		wantError(t, err, connect.CodeInvalidArgument, reason, "")
	}

	publish := func(text string) {
		t.Helper()
		if _, err := js.Publish(ctx, "orders.new", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"one", "two", "three"} {
		publish(text)
	}
	var page *operatorv1.ReadWorkerLogsResponse
	brokertest.Await(t, "three lines", func() bool {
		page, err = c.ReadWorkerLogs(ctx, &operatorv1.ReadWorkerLogsRequest{Id: "w", PageSize: 2})
		return err == nil && len(page.GetLines()) == 2 && page.GetLines()[1].GetText() == "got three [secret TOKEN]"
	})
	if page, err = c.ReadWorkerLogs(ctx, &operatorv1.ReadWorkerLogsRequest{Id: "w", PageSize: 2, PageToken: page.GetNextPageToken()}); err != nil || len(page.GetLines()) != 1 || page.GetLines()[0].GetText() != "got one [secret TOKEN]" || page.GetNextPageToken() != "" {
		t.Errorf("the second page: %v, %v", page, err)
	}
	events, err := http.Get(base + "/watch/workers/w/logs?tail=1")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	next := func(parts ...string) {
		t.Helper()
		text := ""
		for lines.Scan() && lines.Text() != "" {
			text += lines.Text() + "\n"
		}
		wantText(t, "the event", text, parts...)
	}
	next("event: put", "got three")
	next("event: synced")
	publish("four")
	next("event: put", "got four")

	brokertest.Await(t, "the state", func() bool {
		_, err := c.ReadWorkerState(ctx, &operatorv1.ReadWorkerStateRequest{Id: "w", Key: "k2"})
		return err == nil
	})
	found := map[string]bool{}
	for req := (&operatorv1.ReadWorkerStateRequest{Id: "w", PageSize: 2}); ; {
		page, err := c.ReadWorkerState(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.GetEntries() {
			found[e.GetKey()] = e.GetSize() > 0 && len(e.GetValue()) > 0
		}
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	if len(found) != 3 || !found["k2"] {
		t.Errorf("the state has %v", found)
	}
	_, _, body = request(t, "GET", base+"/workers/w/state?key=k1", "")
	wantText(t, "the value", body, `"key":"k1"`, `"value":"`)
	_, err = c.ReadWorkerState(ctx, &operatorv1.ReadWorkerStateRequest{Id: "w", Key: "none"})
	wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "key")

	trial, err := c.TestWorker(ctx, &operatorv1.TestWorkerRequest{Id: "w", Data: []byte("five"), Headers: []*operatorv1.Header{{Name: "X", Values: []string{"y"}}}})
	if err != nil || len(trial.GetOutputs()) != 1 || string(trial.GetOutputs()[0].GetData()) != "north" || trial.GetOutputs()[0].GetTopic() != "orders.done" ||
		len(trial.GetChanges()) != 3 || trial.GetLogs()[0] != "got five [secret TOKEN]" || trial.GetDigest() != done.GetWorker().GetDigest() || trial.GetError() != "" {
		t.Errorf("the test: %v, %v", trial, err)
	}
	_, _, body = request(t, "POST", base+"/workers/w/test", `{"data": "Zml2ZQ==", "code": {"content": "ZGVmIGhhbmRsZShtKTogcmVqZWN0KCJubyIpCg=="}}`) // reject("no")
	wantText(t, "the test of other code", strings.ReplaceAll(body, ": ", ":"), `"rejected":true`, `"error":"rejected:no"`)
	_, err = c.TestWorker(ctx, &operatorv1.TestWorkerRequest{Id: "w", Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte("def handle(")}}})
	wantError(t, err, connect.CodeInvalidArgument, operator.ReasonBadCode, "code")
	trial, err = c.TestWorker(ctx, &operatorv1.TestWorkerRequest{Id: "w", Code: &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte(`def handle(m): timers.set("t", 1000, "x")`)}}})
	if err != nil || len(trial.GetTimers()) != 1 || trial.GetTimers()[0].GetName() != "t" || string(trial.GetTimers()[0].GetData()) != "x" || trial.GetTimers()[0].GetDue() == nil || trial.GetTimers()[0].GetCancelled() {
		t.Errorf("the test of a timer: %v, %v", trial, err)
	}
	brokertest.Await(t, "that all is handled", func() bool { // a message sets the timer again
		w, err := c.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: "w"})
		return err == nil && w.GetBacklog() == 0
	})
	brokertest.Await(t, "the timers", func() bool {
		_, _, body = request(t, "GET", base+"/workers/w/timers", "")
		return strings.Contains(body, `"name":"later"`)
	})
	wantText(t, "the timers", body, `"key":"orders.new"`, `"due":"9999-`, `"size":"4"`)
	_, _, body = request(t, "POST", base+"/workers/w/timers:cancel", `{"key": "orders.new", "name": "later"}`)
	wantText(t, "the answer", body, `{}`)
	_, err = c.CancelWorkerTimer(ctx, &operatorv1.CancelWorkerTimerRequest{Id: "w", Key: "orders.new", Name: "later"})
	wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "name")
	if timers, err := c.ListWorkerTimers(ctx, &operatorv1.ListWorkerTimersRequest{Id: "w"}); err != nil || len(timers.GetTimers()) != 0 {
		t.Errorf("the timers: %v, %v", timers, err)
	}

	// A new version is a canary until an operator ends it.
	newer := proto.CloneOf(spec)
	newer.Code.Source = &operatorv1.Code_Content{Content: []byte("def handle(m): pass")}
	for _, end := range []func() (*operatorv1.Worker, error){
		func() (*operatorv1.Worker, error) {
			return c.Rollback(ctx, &operatorv1.RollbackRequest{Id: "w", Digest: done.GetWorker().GetDigest()})
		},
		func() (*operatorv1.Worker, error) {
			return c.PromoteWorker(ctx, &operatorv1.PromoteWorkerRequest{Id: "w"})
		},
	} {
		changed, err := c.ApplyWorker(ctx, &operatorv1.ApplyWorkerRequest{Spec: newer})
		if err != nil || changed.GetWorker().GetDigest() != done.GetWorker().GetDigest() || changed.GetWorker().GetCanary().GetPercent() != 10 ||
			changed.GetWorker().GetSpec().GetCode().GetDigest() != changed.GetWorker().GetCanary().GetDigest() || changed.GetWorker().GetVersions()[0].GetRollout() != "canary" {
			t.Fatalf("a canary: %v, %v", changed, err)
		}
		w, err := end()
		if err != nil || w.GetCanary() != nil {
			t.Errorf("its end: %v, %v", w, err)
		}
		if promoted := w.GetVersions()[0].GetRollout() == "promoted"; promoted != (w.GetDigest() == changed.GetWorker().GetCanary().GetDigest()) || promoted != w.GetVersions()[0].GetCurrent() {
			t.Errorf("its end: %v", w)
		}
	}
	_, err = c.PromoteWorker(ctx, &operatorv1.PromoteWorkerRequest{Id: "w"})
	wantError(t, err, connect.CodeInvalidArgument, operator.ReasonInvalid, "")
	for _, action := range []string{"PromoteWorker", "ListWorkerTimers", "CancelWorkerTimer", "ReadWorkerLogs", "FollowWorkerLogs", "ReadWorkerState", "TestWorker", "ApplyWorker"} {
		_, _, body = request(t, "GET", base+"/audit?page_size=1000&action="+action, "")
		wantText(t, "the audit", body, "WorkerService."+action)
		if strings.Contains(body, "hunter2") {
			t.Error("the audit has a secret")
		}
	}
}
