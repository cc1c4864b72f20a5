package operator_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// store puts n dead letters of the worker into the stream, as a host does.
func (o *office) store(n int, data string, header nats.Header) {
	o.t.Helper()
	for i := range n {
		m := &nats.Msg{Subject: "$host.dead.t-.desk", Data: []byte(data), Header: nats.Header{
			host.HeaderWorker: {"desk"}, host.HeaderReason: {"no"}, host.HeaderTopic: {"work.desk"}, host.HeaderMessage: {fmt.Sprint("WORK:", i)}, host.HeaderAttempts: {"1"},
		}}
		for name, values := range header {
			m.Header[name] = values
		}
		if _, err := o.js.PublishMsgAsync(m); err != nil {
			o.t.Fatal(err)
		}
	}
	<-o.js.PublishAsyncComplete()
}

// A page of dead letters keeps the begin of each message in memory, and not the messages.
func TestPageOfLettersKeepsNoWholeMessage(t *testing.T) {
	o := openOffice(t, nil, "")
	o.store(3, strings.Repeat("x", 500_000), nil)
	list, err := operator.FromHost(o.ask).DeadLetters(t.Context(), "desk", "", 0, 1001)
	if err != nil || len(list) != 3 {
		t.Fatalf("%d letters, %v", len(list), err)
	}
	for _, d := range list {
		if len(d.GetData()) != 4<<10 || cap(d.GetData()) > 8<<10 || d.GetSize() != 500_000 {
			t.Errorf("a list has %d of %d bytes and keeps %d", len(d.GetData()), d.GetSize(), cap(d.GetData()))
		}
	}
	for _, d := range o.letters("no") {
		if len(d.GetData()) != 4<<10 || d.GetSize() != 500_000 {
			t.Errorf("the list of a group has %d of %d bytes", len(d.GetData()), d.GetSize())
		}
	}
}

// Dead letters are counted by version from all of them, also those of a host that is not
// asked.
func TestAllLettersAreCountedByVersion(t *testing.T) {
	o := openOffice(t, nil, "")
	w, err := o.c.GetWorker(t.Context(), &operatorv1.GetWorkerRequest{Id: "desk"})
	if err != nil || len(w.GetVersions()) != 1 || w.GetVersions()[0].GetCounted() || w.GetVersions()[0].GetDeadLettered() != 0 {
		t.Fatalf("%v, %v", w, err)
	}
	o.store(700, "of another version", nats.Header{host.HeaderDigest: {strings.Repeat("0", 64)}})
	o.store(1300, "x", nats.Header{host.HeaderDigest: {strings.TrimPrefix(w.GetDigest(), "sha256:")}})
	w, err = o.c.GetWorker(t.Context(), &operatorv1.GetWorkerRequest{Id: "desk"})
	if err != nil || w.GetVersions()[0].GetDeadLettered() != 1300 || w.GetDeadLetters() != 2000 {
		t.Errorf("%v, %v", w, err)
	}
	s, err := o.js.Stream(t.Context(), "HOST_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	for c := range s.ListConsumers(t.Context()).Info() {
		t.Errorf("the count has left a consumer: %v", c)
	}
}

// A message whose subject and headers are not UTF-8 is shown, over gRPC and as JSON, and
// so is the page that it is on.
func TestLetterThatIsNotUTF8(t *testing.T) {
	o := openOffice(t, nil, "")
	bad := []string{"\xff\xfe"}
	o.store(1, "\xff", nats.Header{
		host.HeaderTopic: {"work.\xff"}, host.HeaderReason: {"rejected: \xff"}, host.HeaderWorker: bad, host.HeaderMessage: bad, host.HeaderDigest: bad, host.HeaderOutput: bad, "X": bad,
	})
	o.store(1, "fine", nil)
	c := operatorv1connect.NewWorkerServiceClient(h2c(t), o.base, connect.WithGRPC())
	list, err := c.ListDeadLetters(t.Context(), &operatorv1.ListDeadLettersRequest{WorkerId: "desk"})
	if err != nil || len(list.GetDeadLetters()) != 2 || list.GetDeadLetters()[0].GetTopic() != "work.\uFFFD" {
		t.Fatalf("the list: %v, %v", list, err)
	}
	groups, err := c.ListDeadLetterGroups(t.Context(), &operatorv1.ListDeadLetterGroupsRequest{WorkerId: "desk"})
	if err != nil || len(groups.GetGroups()) != 2 {
		t.Fatalf("the groups: %v, %v", groups, err)
	}
	for _, g := range groups.GetGroups() {
		if found := o.letters(g.GetName()); len(found) != 1 {
			t.Errorf("%q has %d letters", g.GetName(), len(found))
		}
	}
	one, err := c.ReadDeadLetter(t.Context(), &operatorv1.ReadDeadLetterRequest{WorkerId: "desk", Id: list.GetDeadLetters()[0].GetId()})
	if err != nil || string(one.GetData()) != "\xff" || len(one.GetHeaders()) != 1 || one.GetHeaders()[0].GetName() != "X" || one.GetHeaders()[0].GetValues()[0] != "\uFFFD" {
		t.Errorf("one letter: %v, %v", one, err)
	}
	for _, path := range []string{"/workers/desk/deadletters", "/workers/desk/deadletter-groups", "/workers/desk/deadletters/" + one.GetId(), "/ui/workers/desk/deadletters", "/ui/workers/desk/deadletters/" + one.GetId()} {
		if code, _, text := request(t, "GET", o.base+path, ""); code != 200 || !utf8.ValidString(text) {
			t.Errorf("%s: %d %.200s", path, code, text)
		}
	}
	if _, err := c.Redrive(t.Context(), &operatorv1.RedriveRequest{WorkerId: "desk", Ids: []string{one.GetId()}}); err != nil {
		t.Errorf("redrive: %v", err)
	}
}

// A test of code whose output, error and printed lines are not UTF-8 shows them, and so does
// the log of the worker.
func TestOutputThatIsNotUTF8(t *testing.T) {
	o := openOffice(t, nil, "")
	c := operatorv1connect.NewWorkerServiceClient(h2c(t), o.base, connect.WithGRPC())
	r, err := c.TestWorker(t.Context(), &operatorv1.TestWorkerRequest{Id: "desk", Data: []byte("bytes")})
	if err != nil || len(r.GetOutputs()) != 1 || r.GetOutputs()[0].GetTopic() != "out.\uFFFD" || r.GetOutputs()[0].GetHeaders()[0].GetValues()[0] != "\uFFFD" {
		t.Errorf("%v, %v", r, err)
	}
	r, err = c.TestWorker(t.Context(), &operatorv1.TestWorkerRequest{Id: "desk", Data: []byte("bad")})
	if err != nil || r.GetError() != "no \uFFFD" || !slices.Equal(r.GetLogs(), []string{"loaded \uFFFD"}) {
		t.Errorf("%v, %v", r, err)
	}
	o.fail("one")
	brokertest.Await(t, "the log", func() bool {
		code, _, text := request(t, "GET", o.base+"/workers/desk/logs", "")
		if code != 200 {
			t.Fatalf("the log: %d %s", code, text)
		}
		return strings.Contains(text, "loaded \uFFFD")
	})
}

// The audit has what a call has found, also beside a note and ids that are longer than an
// entry.
func TestAuditKeepsWhatWasFound(t *testing.T) {
	o := openOffice(t, nil, "")
	found := o.fail("one", "two", "three")
	note := strings.Repeat("long ", 400)
	edit, err := o.c.RedriveEdited(t.Context(), &operatorv1.RedriveEditedRequest{WorkerId: "desk", Id: found[0].GetId(), Data: []byte("fine"), Note: note})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 900)
	for i := range ids {
		ids[i] = fmt.Sprint(1<<40 + i)
	}
	ids[0] = found[1].GetId()
	if r, err := o.c.Redrive(t.Context(), &operatorv1.RedriveRequest{WorkerId: "desk", Ids: ids}); err != nil || r.GetRedriven() != 1 {
		t.Fatal(r, err)
	}
	brokertest.Await(t, "it is a letter again", func() bool { return len(o.letters("")) == 2 })
	if r, err := o.c.DiscardDeadLetters(t.Context(), &operatorv1.DiscardDeadLettersRequest{WorkerId: "desk", Note: note, All: true}); err != nil || r.GetDiscarded() != 2 {
		t.Fatal(r, err)
	}
	wantText(t, "the audit", o.audit(), `"detail":"it was `+edit.GetBefore()+`; `+found[0].GetId()+` edited to `+edit.GetAfter()+`: long`,
		`"detail":"dead letters: 1; `+found[1].GetId(), `"detail":"dead letters: 2; long`)
}

// twoVersions has two versions with this code.
type twoVersions struct {
	*hosted
	before, after string
}

func (c twoVersions) Code(context.Context, string, string, string) (*host.Comparison, error) {
	return &host.Comparison{From: host.Version{Digest: "a"}, To: host.Version{Digest: "b"}, Before: []byte(c.before), After: []byte(c.after)}, nil
}

// Code of very many lines is not compared, and a page shows a part of a long diff and says
// so.
func TestCodeOfManyLines(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		answer, page  string
		most          int // bytes of the page
	}{
		"empty lines":  {strings.Repeat("\n", 1<<20), strings.Repeat("x\n", 1<<19), "more than 20000 lines", "No diff: the two versions have more than 20000 lines", 20_000},
		"one too many": {strings.Repeat("a\n", 10_000), strings.Repeat("b\n", 10_001), "more than 20000 lines", "No diff: ", 20_000},
		"long diff":    {strings.Repeat("a\n", 10_000), strings.Repeat("b\n", 10_000), `"added":10000`, "18\u202f000 more changed lines are not shown.", 200_000},
		"short diff":   {strings.Repeat("a\n", 1000), strings.Repeat("b\n", 1000), `"added":1000`, "lifecyclectl workers diff", 200_000},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := serve(t, operator.Config{Workers: twoVersions{newHosted(), c.before, c.after}})
			_, _, text := request(t, "GET", base+"/workers/enrich-orders/diff", "")
			wantText(t, "the answer", strings.ReplaceAll(text, `": `, `":`), c.answer)
			code, _, text := request(t, "GET", base+"/ui/workers/enrich-orders/diff", "")
			wantText(t, "the page", text, c.page)
			if code != 200 || len(text) > c.most || strings.Contains(text, "not shown") != (name == "long diff") {
				t.Errorf("the page: %d, %d bytes", code, len(text))
			}
		})
	}
}

// breaking fails in the middle of its dead letters.
type breaking struct {
	*hosted
	err error
}

func (b breaking) Discard(context.Context, string, []uint64, bool) (int, error) {
	return 3, b.err
}

func (b breaking) Redrive(context.Context, string, []uint64) (int, error) { return 3, b.err }

// A call that fails in the middle says how many dead letters it has done.
func TestErrorInTheMiddleOfLetters(t *testing.T) {
	for want, err := range map[string]error{
		"the call took too long": fmt.Errorf("discard: 17: %w", context.DeadlineExceeded), "internal error": errors.New("a defect"),
		"gone \uFFFD": operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "gone \xff"), "NATS does not answer": nats.ErrConnectionClosed,
	} {
		base, _ := serve(t, operator.Config{Workers: breaking{newHosted(), err}})
		_, _, text := request(t, "POST", base+"/workers/enrich-orders/deadletters:discard", `{"all": true, "note": "x"}`)
		wantText(t, "discard", text, "dead letters discarded: 3, and then: "+want)
		_, _, text = request(t, "POST", base+"/workers/enrich-orders/deadletters:redrive", `{"all": true}`)
		wantText(t, "redrive", text, "dead letters redriven: 3, and then: "+want)
		_, _, text = request(t, "GET", base+"/audit", "")
		wantText(t, "the audit", strings.ReplaceAll(text, `": "`, `":"`), `"detail":"dead letters: 3; all"`)
	}
}

// A list has the beginning of each message for those who may read one whole, and the reasons
// for all: a message is data, which a viewer does not see.
func TestListsOfDeadLettersHaveDataForOperators(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	write(t, path, "inspector view "+partToken("view")+"\noperator act "+partToken("act")+"\n")
	auth, err := operator.TokenFile(path, quiet)
	if err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, operator.Config{Workers: newHosted(), Auth: auth})
	for who, sees := range map[string]bool{"view": false, "act": true} {
		code, _, text := request(t, "GET", base+"/workers/enrich-orders/deadletters", "", bearer(partToken(who))...)
		if code != 200 || !strings.Contains(text, `"reason"`) || strings.Contains(text, `"data"`) != sees {
			t.Errorf("%s: %d %s", who, code, text)
		}
	}
}
