package operator_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
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

func TestHostedWorkersOnNATS(t *testing.T) {
	js := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "ORDERS", Subjects: []string{"orders.>"}}}}).JetStream()
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		t.Fatal(err)
	}
	h, err := host.New(js, host.Config{Engines: engines, Logger: quiet, RetryBase: time.Millisecond, MaxRetries: 1})
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
	inline := func(code string) *operatorv1.Code {
		return &operatorv1.Code{Source: &operatorv1.Code_Content{Content: []byte(code)}}
	}
	create := func(code string) (*operatorv1.Worker, error) {
		return c.CreateWorker(ctx, &operatorv1.CreateWorkerRequest{Id: "enrich", MimeType: "text/x-starlark", Topics: []string{"orders.created"}, Code: inline(code)})
	}
	_, err = create("def handle(:")
	wantError(t, err, connect.CodeInvalidArgument, operator.ReasonBadCode, "code")
	w, err := create("def handle(m):\n  fail('no customer')\n")
	if err != nil || w.GetState() != "Running" || len(w.GetVersions()) != 1 || w.GetVersions()[0].GetWho() != "loopback" {
		t.Fatalf("create: %v, %v", w, err)
	}
	_, err = create("def handle(m):\n  pass\n")
	wantError(t, err, connect.CodeAlreadyExists, operator.ReasonExists, "id")
	if _, err := js.Publish(ctx, "orders.created", []byte(`{"order":1}`)); err != nil {
		t.Fatal(err)
	}
	var letters *operatorv1.ListDeadLettersResponse
	brokertest.Await(t, "a dead letter", func() bool {
		letters, err = c.ListDeadLetters(ctx, &operatorv1.ListDeadLettersRequest{WorkerId: "enrich"})
		return err == nil && len(letters.GetDeadLetters()) == 1
	})
	if d := letters.GetDeadLetters()[0]; !strings.Contains(d.GetReason(), "no customer") || string(d.GetData()) != `{"order":1}` || d.GetTopic() != "orders.created" {
		t.Errorf("the dead letter is %v", d)
	}
	first := w.GetDigest()
	w, err = c.LoadCode(ctx, &operatorv1.LoadCodeRequest{Id: "enrich", Code: inline("def handle(m):\n  pass\n")})
	if err != nil || w.GetDigest() == first || len(w.GetVersions()) != 2 || !w.GetVersions()[0].GetCurrent() {
		t.Fatalf("load: %v, %v", w, err)
	}
	if r, err := c.Redrive(ctx, &operatorv1.RedriveRequest{WorkerId: "enrich", All: true}); err != nil || r.GetRedriven() != 1 {
		t.Errorf("redrive: %v, %v", r, err)
	}
	brokertest.Await(t, "the redriven message", func() bool {
		w, err = c.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: "enrich"})
		return err == nil && w.GetDeadLetters() == 0 && w.GetVersions()[0].GetSucceeded() == 1
	})
	if w, err = c.StopWorker(ctx, &operatorv1.StopWorkerRequest{Id: "enrich"}); err != nil || w.GetDesired() != "Stopped" {
		t.Errorf("stop: %v, %v", w, err)
	}
	for range 3 {
		if _, err := js.Publish(ctx, "orders.created", []byte(`{"order":2}`)); err != nil {
			t.Fatal(err)
		}
	}
	if w, err = c.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: "enrich"}); err != nil || w.GetBacklog() != 3 {
		t.Errorf("3 messages wait for it: %v, %v", w, err)
	}
	if list, err := c.ListWorkers(ctx, &operatorv1.ListWorkersRequest{}); err != nil || list.GetWorkers()[0].GetBacklog() != 3 {
		t.Errorf("3 messages wait for it: %v, %v", list, err)
	}
	if w, err = c.StartWorker(ctx, &operatorv1.StartWorkerRequest{Id: "enrich"}); err != nil || w.GetState() != "Running" {
		t.Errorf("start: %v, %v", w, err)
	}
	if w, err = c.Rollback(ctx, &operatorv1.RollbackRequest{Id: "enrich", Digest: first}); err != nil || w.GetDigest() != first {
		t.Errorf("rollback: %v, %v", w, err)
	}
	_, err = c.Rollback(ctx, &operatorv1.RollbackRequest{Id: "enrich", Digest: "sha256:" + strings.Repeat("0", 64)})
	wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "digest")
	if r, err := c.RecoverWorkers(ctx, &operatorv1.RecoverWorkersRequest{}); err != nil || len(r.GetRecovered()) != 1 || len(r.GetFailures()) != 0 {
		t.Errorf("recover: %v, %v", r, err)
	}
	history, err := c.GetWorkerHistory(ctx, &operatorv1.GetWorkerHistoryRequest{Id: "enrich"})
	if err != nil || len(history.GetVersions()) != 3 || history.GetVersions()[0].GetDigest() != first {
		t.Errorf("history: %v, %v", history, err)
	}
	if code, _, text := request(t, "GET", base+"/ui/workers/enrich", ""); code != 200 || !strings.Contains(text, "enrich") {
		t.Errorf("the worker's page: %d", code)
	}
	if code, _, text := request(t, "DELETE", base+"/workers/enrich", ""); code != 200 {
		t.Errorf("delete: %d %s", code, text)
	}
	// A worker with an output topic and limits of its own, over REST.
	code, _, body := request(t, "POST", base+"/workers", `{"id": "copy", "mimeType": "text/x-starlark", "topics": ["orders.created"], "outputTopic": "orders.copied",
		"limits": {"time": "2.5s", "outputs": 1}, "code": {"content": "ZGVmIGhhbmRsZShtKToKICByZXR1cm4gW20udGV4dF0gKiBpbnQobS50ZXh0KQo="}}`) // return [m.text] * int(m.text)
	body = strings.ReplaceAll(body, ", ", ",") // protojson varies its spaces from build to build
	if code != 200 || !strings.Contains(body, `"outputTopic":"orders.copied"`) || !strings.Contains(body, `"limits":{"time":"2.500s","outputs":1}`) {
		t.Errorf("create with an output topic and limits: %d %s", code, body)
	}
	for _, text := range []string{"2", "1"} {
		if _, err := js.Publish(ctx, "orders.created", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	brokertest.Await(t, "the output", func() bool {
		orders, err := js.Stream(ctx, "ORDERS")
		if err != nil {
			t.Fatal(err)
		}
		m, err := orders.GetLastMsgForSubject(ctx, "orders.copied")
		return err == nil && string(m.Data) == "1"
	})
	if letters, err := c.ListDeadLetters(ctx, &operatorv1.ListDeadLettersRequest{WorkerId: "copy"}); err != nil || len(letters.GetDeadLetters()) != 1 || !strings.Contains(letters.GetDeadLetters()[0].GetReason(), "outputs limit of 1") {
		t.Errorf("two outputs under a limit of one: %v, %v", letters, err)
	}
	for field, limits := range map[string]*operatorv1.Limits{"limits.time": {Time: durationpb.New(-1)}, "limits.memory": {Memory: -1}} {
		_, err := c.CreateWorker(ctx, &operatorv1.CreateWorkerRequest{Id: "x", MimeType: "text/x-starlark", Topics: []string{"orders.created"}, Limits: limits, Code: inline("def handle(m): pass")})
		wantError(t, err, connect.CodeInvalidArgument, operator.ReasonInvalid, field)
	}
	if _, err := c.DeleteWorker(ctx, &operatorv1.DeleteWorkerRequest{Id: "copy"}); err != nil {
		t.Error(err)
	}
	if list, err := c.ListWorkers(ctx, &operatorv1.ListWorkersRequest{}); err != nil || len(list.GetWorkers()) != 0 {
		t.Errorf("left are %v, %v", list, err)
	}
	_, err = c.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: "enrich"})
	wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "id")
}
