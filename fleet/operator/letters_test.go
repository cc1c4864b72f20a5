package operator_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// office is a server with one hosted worker "desk", which rejects each message as its
// data says, but those that begin with "fine".
type office struct {
	t    *testing.T
	js   jetstream.JetStream
	base string
	c    operatorv1connect.WorkerServiceClient
	ask  *host.Host // of the server; another host runs the worker
}

// loud is an engine that prints bytes when it loads code.
type loud struct{ *native.Engine }

func (l loud) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	if cfg.Log != nil {
		cfg.Log("loaded \xff")
	}
	return l.Engine.Load(ctx, code, cfg)
}

func openOffice(t *testing.T, auth operator.Authenticator, token string) *office {
	t.Helper()
	js := brokertest.Embedded(t, broker.Config{Streams: []jetstream.StreamConfig{{Name: "WORK", Subjects: []string{"work.>", "out.>"}}}}).JetStream()
	engines, err := engine.NewRegistry(loud{native.New(map[string]native.Func{"desk": func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if bytes.HasPrefix(m.Data, []byte("fine")) {
			return []engine.Output{{Data: fmt.Appendf(nil, "%s %s", m.Data, m.Header["Lifecycle-Key"])}}, nil
		}
		if string(m.Data) == "bytes" {
			return []engine.Output{{Topic: "out.\xff", Header: map[string][]string{"X": {"\xff"}}}}, nil
		}
		if string(m.Data) == "bad" {
			return nil, errors.New("no \xff")
		}
		reason, _, _ := bytes.Cut(m.Data, []byte("\n"))
		return nil, engine.Reject(strings.ToValidUTF8(string(reason), "?"))
	}})})
	if err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, js: js}
	hosts := make([]*host.Host, 2)
	for i := range hosts {
		if hosts[i], err = host.New(js, host.Config{HostID: fmt.Sprint("host-", i), Engines: engines, Logger: quiet, RetryBase: time.Millisecond, MaxRetries: 1}); err != nil {
			t.Fatal(err)
		}
		h := hosts[i]
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := h.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if err := hosts[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.ask = hosts[1]
	if _, err := o.ask.Create(t.Context(), host.Spec{ID: "desk", MIMEType: native.MIMEType, Topic: "work.desk", OutputTopic: "out.desk", Code: []byte("desk")}); err != nil {
		t.Fatal(err)
	}
	o.base, _ = serve(t, operator.Config{Workers: operator.FromHost(o.ask), Timeout: time.Minute, Auth: auth, Rate: 1e6})
	o.c = operatorv1connect.NewWorkerServiceClient(http.DefaultClient, o.base, connect.WithInterceptors(connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if token != "" {
				req.Header().Set("Authorization", "Bearer "+token)
			}
			return next(ctx, req)
		}
	})))
	return o
}

// fail publishes messages and waits until they are dead letters.
func (o *office) fail(messages ...string) (list []*operatorv1.DeadLetter) {
	o.t.Helper()
	before := o.letters("")
	for _, data := range messages {
		if _, err := o.js.PublishMsg(o.t.Context(), &nats.Msg{Subject: "work.desk", Data: []byte(data), Header: nats.Header{host.HeaderKey: {"k"}, "Trace": {"<b>1</b>"}}}); err != nil {
			o.t.Fatal(err)
		}
	}
	brokertest.Await(o.t, "the dead letters", func() bool {
		list = o.letters("")
		return len(list) == len(before)+len(messages)
	})
	return list
}

func (o *office) letters(group string) []*operatorv1.DeadLetter {
	o.t.Helper()
	answer, err := o.c.ListDeadLetters(o.t.Context(), &operatorv1.ListDeadLettersRequest{WorkerId: "desk", Group: group, PageSize: 1000})
	if err != nil {
		o.t.Fatal(err)
	}
	return answer.GetDeadLetters()
}

// handled waits for the outputs of the worker.
func (o *office) handled(want ...string) {
	o.t.Helper()
	s, err := o.js.Stream(o.t.Context(), "WORK")
	if err != nil {
		o.t.Fatal(err)
	}
	var got []string
	brokertest.Await(o.t, "the outputs", func() bool {
		got = nil
		for seq := uint64(1); ; {
			m, err := s.GetMsg(o.t.Context(), seq, jetstream.WithGetMsgSubject("out.desk"))
			if err != nil {
				return len(got) >= len(want)
			}
			got, seq = append(got, string(m.Data)), m.Sequence+1
		}
	})
	if !slices.Equal(got, want) {
		o.t.Errorf("the worker has published %q, want %q", got, want)
	}
}

func (o *office) audit() string {
	_, _, text := request(o.t, "GET", o.base+"/audit", "")
	return strings.ReplaceAll(text, `": "`, `":"`) // protojson varies its spaces from build to build
}

func TestDeadLettersByReason(t *testing.T) {
	o := openOffice(t, nil, "")
	o.fail("order 1 is late", "no customer", "order 22 is late", "order 3 is late")
	groups, err := o.c.ListDeadLetterGroups(t.Context(), &operatorv1.ListDeadLetterGroupsRequest{WorkerId: "desk"})
	if err != nil || len(groups.GetGroups()) != 2 || groups.GetGroups()[0].GetCount() != 3 || groups.GetGroups()[0].GetReason() != "rejected: order 3 is late" {
		t.Fatalf("groups: %v, %v", groups, err)
	}
	late := groups.GetGroups()[0].GetName()
	page, err := o.c.ListDeadLetters(t.Context(), &operatorv1.ListDeadLettersRequest{WorkerId: "desk", Group: late, PageSize: 2})
	if err != nil || len(page.GetDeadLetters()) != 2 || page.GetNextPageToken() == "" {
		t.Fatalf("the first page: %v, %v", page, err)
	}
	// The last one of the first page goes: the second page goes on behind it.
	if n, err := o.ask.Discard(t.Context(), "desk", false, mustSeq(t, page.GetDeadLetters()[1].GetId())); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	next, err := o.c.ListDeadLetters(t.Context(), &operatorv1.ListDeadLettersRequest{WorkerId: "desk", Group: late, PageSize: 2, PageToken: page.GetNextPageToken()})
	if err != nil || len(next.GetDeadLetters()) != 1 || string(next.GetDeadLetters()[0].GetData()) != "order 3 is late" || next.GetNextPageToken() != "" {
		t.Errorf("the second page: %v, %v", next, err)
	}
	// An empty group is never all letters.
	for _, group := range []string{"rejected: none such", strings.ToUpper(late)} {
		if r, err := o.c.Redrive(t.Context(), &operatorv1.RedriveRequest{WorkerId: "desk", Group: group}); err != nil || r.GetRedriven() != 0 {
			t.Errorf("redrive of an empty group: %v, %v", r, err)
		}
		if r, err := o.c.DiscardDeadLetters(t.Context(), &operatorv1.DiscardDeadLettersRequest{WorkerId: "desk", Group: group, Note: "x"}); err != nil || r.GetDiscarded() != 0 {
			t.Errorf("discard of an empty group: %v, %v", r, err)
		}
	}
	if r, err := o.c.DiscardDeadLetters(t.Context(), &operatorv1.DiscardDeadLettersRequest{WorkerId: "desk", Group: late, DryRun: true}); err != nil || r.GetDiscarded() != 2 || len(o.letters("")) != 3 {
		t.Errorf("a dry run: %v, %v", r, err)
	}
	if r, err := o.c.DiscardDeadLetters(t.Context(), &operatorv1.DiscardDeadLettersRequest{WorkerId: "desk", Group: late, Note: "the orders are cancelled"}); err != nil || r.GetDiscarded() != 2 || len(o.letters("")) != 1 {
		t.Errorf("discard: %v, %v", r, err)
	}
	wantText(t, "the audit", o.audit(), `"detail":"dead letters: 2; the orders are cancelled; group `+late+`"`)
}

func mustSeq(t *testing.T, id string) (seq uint64) {
	t.Helper()
	if _, err := fmt.Sscan(id, &seq); err != nil {
		t.Fatal(err)
	}
	return seq
}

// A message is read whole, in parts, also when it is not text, and is edited and redriven
// over REST. The audit has each part, and both digests of the edit.
func TestDeadLetterIsReadWholeAndEdited(t *testing.T) {
	o := openOffice(t, nil, "")
	large := "large\n" + strings.Repeat("0123456789abcdef", (1<<20-600)/16)
	found := o.fail("\x00\xff<script>", large)
	for i, want := range []string{"\x00\xff<script>", large} {
		req, got := &operatorv1.ReadDeadLetterRequest{WorkerId: "desk", Id: found[i].GetId(), Limit: 100_000}, ""
		for more := true; more; more = req.GetOffset() < int64(len(want)) {
			d, err := o.c.ReadDeadLetter(t.Context(), req)
			if err != nil || d.GetSize() != int64(len(want)) || len(d.GetHeaders()) != 2 || d.GetHeaders()[0].GetName() != host.HeaderKey || !strings.HasPrefix(d.GetMessage(), "WORK:") {
				t.Fatalf("%d: %v", i, err)
			}
			got += string(d.GetData())
			req.Offset += int64(len(d.GetData()))
		}
		if got != want {
			t.Errorf("message %d has %d bytes, want %d", i, len(got), len(want))
		}
	}
	parts := 1 + (len(large)+99_999)/100_000
	if text := o.audit(); strings.Count(text, "ReadDeadLetter") != parts || !strings.Contains(text, found[1].GetId()+" from byte 100000 on") {
		t.Errorf("reading %d parts is in the audit %d times", parts, strings.Count(text, "ReadDeadLetter"))
	}
	path := o.base + "/workers/desk/deadletters/" + found[1].GetId()
	code, _, text := request(t, "GET", path, "")
	if code != 200 || !strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(large[:999]))) {
		t.Errorf("over REST: %d, %d bytes", code, len(text))
	}
	edited := "fine\n" + large // it does not fit beside its headers
	body, _ := json.Marshal(map[string]any{"data": []byte(edited), "note": "a typo"})
	var digests struct{ Before, After string }
	code, _, text = request(t, "POST", path+"/redrive", string(body))
	if err := json.Unmarshal([]byte(text), &digests); err != nil || code != 200 || digests.Before == digests.After {
		t.Fatalf("edit: %d %s", code, text)
	}
	wantText(t, "the audit", o.audit(), `"detail":"it was `+digests.Before+`; `+found[1].GetId()+` edited to `+digests.After+`: a typo"`)
	o.handled(edited + " [k]")
	code, _, text = request(t, "POST", path+"/redrive", string(body))
	if code != 404 || !strings.Contains(text, operator.ReasonNotFound) {
		t.Errorf("a second edit: %d %s", code, text)
	}
	for _, id := range []string{"0", "99999", found[1].GetId(), "18446744073709551615"} {
		_, err := o.c.ReadDeadLetter(t.Context(), &operatorv1.ReadDeadLetterRequest{WorkerId: "desk", Id: id})
		wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "id")
	}
	_, err := o.c.ReadDeadLetter(t.Context(), &operatorv1.ReadDeadLetterRequest{WorkerId: "desk", Id: "x1"})
	wantError(t, err, connect.CodeInvalidArgument, operator.ReasonInvalid, "id")
}

// Of two operators who edit one letter at once one wins, and the other gets a conflict.
func TestTwoOperatorsEditOneLetter(t *testing.T) {
	o := openOffice(t, nil, "")
	id := o.fail("first")[0].GetId()
	errs := make(chan error)
	for i := range 4 {
		go func() {
			_, err := o.c.RedriveEdited(context.WithoutCancel(t.Context()), &operatorv1.RedriveEditedRequest{WorkerId: "desk", Id: id, Data: fmt.Append(nil, "fine ", i)})
			errs <- err
		}()
	}
	won := 0
	for range 4 {
		err := <-errs
		switch code := connect.CodeOf(err); {
		case err == nil:
			won++
		case code == connect.CodeAborted:
			wantError(t, err, connect.CodeAborted, operator.ReasonRedriven, "")
		default: // it came after the winner had ended
			wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "id")
		}
	}
	if won != 1 {
		t.Errorf("%d of 4 have won", won)
	}
}

// The pages of dead letters: by reason, one as text, JSON and hexadecimal, its download,
// the edit and the discard. Hostile messages stay text.
func TestPagesOfDeadLetters(t *testing.T) {
	o := openOffice(t, nil, "")
	evil := `<script>alert(1)</script></textarea><img src=x onerror=alert(1)>`
	found := o.fail(evil, `{"order": 7, "a": [1]}`, "\x00\x01\xff\xfe", "two\nlines\n", "\nfirst line empty", "with\r\nreturns", "\u202egnp.exe")
	page := func(i int, query string) string {
		t.Helper()
		code, h, text := request(t, "GET", o.base+"/ui/workers/desk/deadletters/"+found[i].GetId()+query, "")
		if code != 200 || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || strings.Contains(text, "<script>alert") || strings.Contains(text, "<img src=x") {
			t.Errorf("page of %d: %d", i, code)
		}
		return text
	}
	wantText(t, "hostile", page(0, ""), "as text", "&lt;script&gt;alert(1)", "&lt;b&gt;1&lt;/b&gt;", "Edit and redrive")
	wantText(t, "JSON", page(1, ""), "as JSON", "\n  &#34;order&#34;: 7,\n")
	wantText(t, "JSON as it is", page(1, "?as=text"), "as text", `{&#34;order&#34;: 7, &#34;a&#34;: [1]}`)
	wantText(t, "binary", page(2, ""), "as hexadecimal", "00000000  00 01 ff fe")
	wantText(t, "binary as text", page(2, "?as=text"), "as text", "\u2400\u2401")
	if text := page(6, ""); strings.Contains(text, "\u202e") && strings.Contains(text, "<pre class=\"body\">\n\u202e") {
		t.Error("a message turns the direction of the page's text")
	}
	code, h, text := request(t, "GET", o.base+"/ui/workers/desk/deadletters/"+found[2].GetId()+"/data", "")
	if code != 200 || text != "\x00\x01\xff\xfe" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment") || h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("download: %d %q %v", code, text, h)
	}
	if code, _, text := request(t, "GET", o.base+"/ui/workers/desk/deadletters/99999/data", ""); code != 404 || !strings.Contains(text, "<html") {
		t.Errorf("a download of nothing: %d", code)
	}
	_, _, text = request(t, "GET", o.base+"/ui/workers/desk/deadletters", "")
	wantText(t, "the groups", text, "By reason", "rejected: two", "Discard all…", "--by-reason")
	// The form has the message as it is, also one that begins with an empty line.
	ask := func(i int) string {
		t.Helper()
		code, _, text := request(t, "GET", o.base+"/ui/act/edit?id=desk&letter="+found[i].GetId(), "")
		if code != 200 {
			t.Errorf("the form of %d: %d", i, code)
		}
		return text
	}
	wantText(t, "the form", ask(4), "autofocus>\n\nfirst line empty</textarea>", `name="as" value="text"`)
	wantText(t, "the form of hostile text", ask(0), "&lt;/textarea&gt;&lt;img")
	wantText(t, "the form of returns", ask(5), `name="as" value="hex"`, "776974680d0a72657475726e73")
	form := []string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin"}
	post := func(action string, fields url.Values) (int, string) {
		code, h, text := request(t, "POST", o.base+"/ui/act/"+action, fields.Encode(), form...)
		if code == 303 {
			_, _, text = request(t, "GET", o.base+h.Get("Location"), "")
		}
		return code, text
	}
	// A browser sends every line of a form with a carriage return.
	if code, text := post("edit", url.Values{"id": {"desk"}, "letter": {found[3].GetId()}, "as": {"text"}, "value": {"fine\r\nlines\r\n"}}); code != 303 || !strings.Contains(text, "The edited message is given to the worker.") {
		t.Errorf("edit: %d %s", code, text)
	}
	o.handled("fine\nlines\n [k]")
	if code, text := post("edit", url.Values{"id": {"desk"}, "letter": {found[2].GetId()}, "as": {"hex"}, "value": {"0001 zz"}}); code != 400 || !strings.Contains(text, "not hexadecimal") || !strings.Contains(text, "0001 zz") {
		t.Errorf("a form that is not hexadecimal: %d", code)
	}
	if code, text := post("edit", url.Values{"id": {"desk"}, "letter": {found[3].GetId()}, "as": {"text"}, "value": {"fine"}}); code != 404 || !strings.Contains(text, "no such dead letter") {
		t.Errorf("an edit of a letter that is gone: %d %s", code, text)
	}
	_, _, text = request(t, "GET", o.base+"/ui/act/discard?id=desk&chosen=1&letter="+found[0].GetId()+"&letter="+found[1].GetId(), "")
	wantText(t, "discard", text, "2 dead letters are removed", "required")
	if code, _ := post("discard", url.Values{"id": {"desk"}, "letter": {found[0].GetId()}}); code != 400 || len(o.letters("")) != 6 {
		t.Errorf("a discard without a reason: %d", code)
	}
	if code, text := post("discard", url.Values{"id": {"desk"}, "letter": {found[0].GetId(), found[1].GetId()}, "note": {"hostile"}}); code != 303 || !strings.Contains(text, "Dead letters discarded: 2.") {
		t.Errorf("discard: %d %s", code, text)
	}
	if n := len(o.letters("")); n != 4 {
		t.Errorf("%d letters are left", n)
	}
}

// What a worker does comes from the host that runs it.
func TestActivityOfAWorker(t *testing.T) {
	o := openOffice(t, nil, "")
	o.fail("bad 1", "bad 2")
	// A host that does not answer within a second is not waited for: ask again.
	brokertest.Await(t, "the activity", func() bool {
		a, err := o.c.GetWorkerActivity(t.Context(), &operatorv1.GetWorkerActivityRequest{Id: "desk"})
		if err != nil {
			t.Fatal(err)
		}
		return a.GetHost() == "host-0" && a.GetFailed() == 2 && a.GetP50() != nil && a.GetWindow().AsDuration() > 0 && len(a.GetVersions()) == 1 && a.GetVersions()[0].GetDeadLettered() == 2
	})
	brokertest.Await(t, "the activity on the page", func() bool {
		_, _, text := request(t, "GET", o.base+"/ui/workers/desk", "")
		return strings.Contains(text, "host-<wbr>0") && strings.Contains(text, "Time to handle") && strings.Contains(text, "a second") && strings.Contains(text, `data-label="Failed" class="num">2<`) && strings.Contains(text, "by reason…")
	})
	if _, err := o.c.StopWorker(t.Context(), &operatorv1.StopWorkerRequest{Id: "desk"}); err != nil {
		t.Fatal(err)
	}
	if a, err := o.c.GetWorkerActivity(t.Context(), &operatorv1.GetWorkerActivityRequest{Id: "desk"}); err != nil || a.GetHost() != "" {
		t.Errorf("of a stopped worker: %v, %v", a, err)
	}
}

// The page of a worker with a canary has its share, both versions' counts, and the buttons
// that end it.
func TestCanaryOnThePage(t *testing.T) {
	h := newHosted()
	base, _ := serve(t, operator.Config{Workers: h})
	w := h.list["enrich-orders"]
	own, digest := w.GetDigest(), "sha256:"+strings.Repeat("7", 64)
	w.Canary = &operatorv1.Canary{Digest: digest, Percent: 10, Since: w.GetUpdatedAt(), Until: w.GetUpdatedAt()}
	_, _, text := request(t, "GET", base+"/ui/workers/enrich-orders", "")
	wantText(t, "the page", text, "<h2>Canary</h2>", "<code>777777777777</code> gets <b>10 %</b>", "own version", "18\u202f442", "/ui/act/promote?id=enrich-orders", "digest="+strings.Replace(own, ":", "%3a", 1))
	_, _, text = request(t, "GET", base+"/ui/act/rollback?id=enrich-orders&digest="+own, "")
	wantText(t, "the question before the end", text, "End the canary of enrich-orders", "The canary 777777777777 gets no more messages")
	_, _, text = request(t, "GET", base+"/ui/act/promote?id=enrich-orders", "")
	wantText(t, "the question before the promotion", text, "Give it every message")
	code, header, _ := request(t, "POST", base+"/ui/act/promote", "id=enrich-orders", "Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin")
	if code != 303 || w.GetDigest() != digest || w.GetCanary() != nil {
		t.Errorf("promote: %d, %v", code, w)
	}
	_, _, text = request(t, "GET", base+header.Get("Location"), "")
	wantText(t, "after the promotion", text, "The canary is the worker&#39;s version now.")
}

// Two versions are compared, also versions that are not text.
func TestCodeOnThePage(t *testing.T) {
	h := newHosted()
	base, _ := serve(t, operator.Config{Workers: h})
	_, _, text := request(t, "GET", base+"/ui/workers/enrich-orders/diff", "")
	wantText(t, "the page", text, `<span class="add">&#43;        return None`, "limits.time", "<b>+2</b>", "beefbeefbeef")
	code, _, text := request(t, "GET", base+"/workers/enrich-orders/diff?from="+url.QueryEscape(h.list["enrich-orders"].GetDigest()), "")
	if code != 200 || !strings.Contains(text, `@@ -1,3 +1,5 @@`) {
		t.Errorf("over REST: %d %s", code, text)
	}
	base, _ = serve(t, operator.Config{Workers: pair{h}})
	_, _, text = request(t, "GET", base+"/workers/enrich-orders/diff", "")
	if strings.Contains(text, `"diff"`) || !strings.Contains(text, "the code is not text") {
		t.Errorf("WebAssembly: %s", text)
	}
	_, _, text = request(t, "GET", base+"/ui/workers/enrich-orders/diff", "")
	wantText(t, "the page of WebAssembly", text, "No diff: the code is not text. 4 bytes became 5.", "Not known any more")
}

// pair has two versions that are not text.
type pair struct{ *hosted }

func (pair) Code(context.Context, string, string, string) (*host.Comparison, error) {
	return &host.Comparison{From: host.Version{Digest: "a"}, To: host.Version{Digest: "b"}, Before: []byte("\x00asm"), After: []byte("\x00asm\xff")}, nil
}
