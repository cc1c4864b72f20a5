package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// givenUp returns a manager whose hook invoice has given up a reaction of each entity. The hook fails
// until mended is set.
func givenUp(t *testing.T, mended *atomic.Bool, ids ...string) (*broker.Broker, *workflow.Manager) {
	t.Helper()
	b := brokertest.Embedded(t, broker.Config{
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS"), workflow.HookBucket("MISSIONS")},
		Streams: []jetstream.StreamConfig{workflow.Journal("MISSIONS")},
	})
	mgr := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	t.Cleanup(func() { mgr.Close() })
	invoice := workflow.Hook{Name: "invoice", Replay: true, Attempts: 1, Do: func(context.Context, workflow.Reaction) error {
		if mended.Load() {
			return nil
		}
		return errors.New("no such account 17")
	}}
	opts := []workflow.RegisterOption{workflow.WithJournal(), workflow.WithHook(invoice)}
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys, opts...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, id := range ids {
		if err := mgr.Create(ctx, &survey{ID: id, State: "planning"}); err != nil {
			t.Fatal(err)
		}
	}
	hooks, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Hooks(hooks) }()
	brokertest.Await(t, "the dead letters", func() bool {
		letters, err := mgr.DeadLetters(ctx, "drone-survey", "invoice")
		return err == nil && len(letters) == len(ids)
	})
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return b, mgr
}

// TestDeadLettersOfAHook lists, redrives and discards what a hook has given up, as an operator
// does with the dead letters of a hosted worker. The server has no hosted workers.
func TestDeadLettersOfAHook(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mended atomic.Bool
	_, mgr := givenUp(t, &mended, "a", "b", "c")
	base, _ := serve(t, operator.Config{Workflows: operator.FromManager(mgr)})
	c := operatorv1connect.NewWorkerServiceClient(http.DefaultClient, base)
	const id = "drone-survey/invoice"
	list := func() []*operatorv1.DeadLetter {
		t.Helper()
		page, err := c.ListDeadLetters(ctx, &operatorv1.ListDeadLettersRequest{WorkerId: id})
		if err != nil {
			t.Fatal(err)
		}
		return page.GetDeadLetters()
	}
	letters := list()
	if len(letters) != 3 || letters[0].GetTopic() != "a" || letters[0].GetReason() != "no such account 17" {
		t.Fatalf("dead letters: %v", letters)
	}
	groups, err := c.ListDeadLetterGroups(ctx, &operatorv1.ListDeadLetterGroupsRequest{WorkerId: id})
	if err != nil || len(groups.GetGroups()) != 1 || groups.GetGroups()[0].GetName() != "no such account #" || groups.GetGroups()[0].GetCount() != 3 {
		t.Errorf("groups: %v, %v", groups, err)
	}
	one, err := c.ReadDeadLetter(ctx, &operatorv1.ReadDeadLetterRequest{WorkerId: id, Id: letters[0].GetId()})
	if err != nil || !strings.Contains(one.GetMessage(), "MISSIONS/a@1.") {
		t.Errorf("one: %v, %v", one, err)
	}
	findings, err := operatorv1connect.NewProcessServiceClient(http.DefaultClient, base).Diagnose(ctx, &operatorv1.DiagnoseRequest{})
	if err != nil || len(findings.GetFindings()) != 1 || findings.GetFindings()[0].GetCause() != "the hook invoice has given up 3 reactions" {
		t.Errorf("doctor: %v, %v", findings, err)
	}
	_, err = c.Redrive(ctx, &operatorv1.RedriveRequest{WorkerId: id, Ids: []string{letters[0].GetId()}})
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "no such account 17") {
		t.Errorf("a redrive that fails again: %v", err)
	}
	if _, err := c.RedriveEdited(ctx, &operatorv1.RedriveEditedRequest{WorkerId: id, Id: letters[0].GetId()}); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("an edit: %v", err)
	}
	would, err := c.DiscardDeadLetters(ctx, &operatorv1.DiscardDeadLettersRequest{WorkerId: id, All: true, DryRun: true})
	if err != nil || would.GetDiscarded() != 3 || len(list()) != 3 {
		t.Errorf("a dry run: %v, %v", would, err)
	}
	for _, action := range []string{"redrive", "discard"} {
		code, _, text := request(t, "GET", base+"/ui/act/"+action+"?id=drone-survey%2Finvoice&letter="+letters[2].GetId(), "")
		if code != 200 || !strings.Contains(text, "drone-survey/") || !strings.Contains(text, "<button") {
			t.Errorf("the page before %s: %d %.300s", action, code, text)
		}
	}
	code, _, text := request(t, "GET", base+"/ui/workers/drone-survey%2Finvoice/deadletters/"+letters[2].GetId(), "")
	if code != 200 || strings.Contains(text, "/ui/act/edit") {
		t.Errorf("the page of one letter: %d %.300s", code, text)
	}
	code, head, text := request(t, "POST", base+"/ui/act/discard", "id=drone-survey%2Finvoice&note=a+test&letter="+letters[2].GetId(),
		"Content-Type", "application/x-www-form-urlencoded")
	if code != 303 || len(list()) != 2 {
		t.Errorf("discard: %d to %s %.300s", code, head.Get("Location"), text)
	}
	mended.Store(true)
	redriven, err := c.Redrive(ctx, &operatorv1.RedriveRequest{WorkerId: id, All: true})
	if err != nil || redriven.GetRedriven() != 2 || len(list()) != 0 {
		t.Errorf("redrive: %v, %v", redriven, err)
	}
	code, _, text = request(t, "GET", base+"/ui/workers/drone-survey%2Finvoice/deadletters", "")
	if code != 200 || !strings.Contains(text, `href="/ui/workflows/drone-survey"`) {
		t.Errorf("the page: %d %.300s", code, text)
	}
	for wrong, want := range map[string]connect.Code{
		"drone-survey/none": connect.CodeNotFound, "none/invoice": connect.CodeNotFound, "worker": connect.CodeUnimplemented,
	} {
		if _, err := c.ListDeadLetters(ctx, &operatorv1.ListDeadLettersRequest{WorkerId: wrong}); connect.CodeOf(err) != want {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	write(t, tokens, "operator flows "+partToken("flows")+" workflows=drone-*\noperator works "+partToken("works")+" workers=*\n")
	auth, err := operator.TokenFile(tokens, quiet)
	if err != nil {
		t.Fatal(err)
	}
	base, _ = serve(t, operator.Config{Workflows: operator.FromManager(mgr), Auth: auth})
	for name, want := range map[string]connect.Code{"flows": 0, "works": connect.CodeNotFound} {
		c := operatorv1connect.NewWorkerServiceClient(http.DefaultClient, base, connect.WithInterceptors(connect.UnaryInterceptorFunc(
			func(next connect.UnaryFunc) connect.UnaryFunc {
				return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
					req.Header().Set("Authorization", "Bearer "+partToken(name))
					return next(ctx, req)
				}
			})))
		_, err := c.Redrive(ctx, &operatorv1.RedriveRequest{WorkerId: id, All: true})
		if err != nil && connect.CodeOf(err) != want || err == nil && want != 0 {
			t.Errorf("the role of %s: %v", name, err)
		}
	}
}

// Each dead letter of a group is read once, however many there are.
func TestGroupOfAHookIsReadOnce(t *testing.T) {
	const id, letters = "drone-survey/invoice", 24
	var ids []string
	for i := range letters {
		ids = append(ids, fmt.Sprintf("m-%02d", i))
	}
	b, mgr := givenUp(t, new(atomic.Bool), ids...)
	base, _ := serve(t, operator.Config{Workflows: operator.FromManager(mgr)})
	c := operatorv1connect.NewWorkerServiceClient(http.DefaultClient, base)
	var gets atomic.Int64
	sub, err := b.Conn().Subscribe("$JS.API.DIRECT.GET.*.$KV.>", func(*nats.Msg) { gets.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	var got []string
	for token := ""; ; {
		page, err := c.ListDeadLetters(t.Context(), &operatorv1.ListDeadLettersRequest{
			WorkerId:  id,
			Group:     "no such account #",
			PageSize:  letters / 2,
			PageToken: token,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.GetDeadLetters() {
			got = append(got, d.GetTopic())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("the group has the letters %q, want %q", got, ids)
	}
	brokertest.Await(t, "the first get", func() bool { return gets.Load() > 0 })
	if n := gets.Load(); n > 3*letters {
		t.Errorf("two pages of %d letters were read with %d gets", letters, n)
	}
	none, err := c.ListDeadLetters(t.Context(), &operatorv1.ListDeadLettersRequest{WorkerId: id, Group: "another reason"})
	if err != nil || len(none.GetDeadLetters()) > 0 {
		t.Errorf("another group: %v, %v", none, err)
	}
}
