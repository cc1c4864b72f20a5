package operator_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// An id, a name, a note, a phase or a label is always shown as plain text: in
// every page, in the pictures, and in updates of an open page.
func TestHostileTextsStayTexts(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	s := newScene(evil)
	base, _ := serve(t, s.config())
	path, form, _ := strings.Cut(s.pages()["move"], "?")
	request(t, "POST", base+path, form, "Content-Type", "application/x-www-form-urlencoded") // for the audit
	ctx := browser(t)
	for name, path := range s.pages() {
		visit(t, ctx, base+path)
		if n := evaluate[int](t, ctx, foreign); n != 0 {
			t.Errorf("%s: a text became %d elements", name, n)
		}
		if evaluate[bool](t, ctx, `"pwned" in window`) {
			t.Errorf("%s: a text ran as a script", name)
		}
		if name != "nothing" && !evaluate[bool](t, ctx, `document.querySelector("main").textContent.includes('<img src=x onerror="window.pwned=1">') || !!document.querySelector("main input, main textarea")?.value.includes("<img src=x")`) {
			t.Errorf("%s: the page shows no hostile text, so the test proves nothing", name)
		}
	}
	// A picture has names in attributes, titles and labels.
	visit(t, ctx, base+s.pages()["entity"])
	if n := evaluate[int](t, ctx, `[...document.querySelectorAll(".diagram *")].filter(e => !["defs", "marker", "path", "circle", "g", "rect", "text", "title", "a"].includes(e.localName)).length`); n != 0 {
		t.Errorf("a name became %d elements of a picture", n)
	}
	// An update.
	visit(t, ctx, base+s.pages()["workflow"])
	await(t, ctx, "live", isLive)
	before := evaluate[string](t, ctx, `document.querySelector(".figures b").textContent`)
	s.change()
	await(t, ctx, "the change", fmt.Sprintf(`document.querySelector(".figures b").textContent !== %q`, before))
	if n := evaluate[int](t, ctx, foreign); n != 0 || evaluate[bool](t, ctx, `"pwned" in window`) {
		t.Errorf("a text became %d elements with a change", n)
	}
}

// Every answer for a browser forbids content that is not the dashboard's own.
func TestEveryPageForbidsForeignScripts(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth})
	for _, path := range []string{"/ui/workflows", "/ui/workflows/drone-survey", "/ui/workflows/drone-survey/m-00000", "/ui/audit", "/ui/nothing", "/ui/act/transition?type=drone-survey&id=m-00000&phase=flying", "/ui/login", "/ui/static/icon.svg", "/ui/static/live.js"} {
		_, h, _ := request(t, "GET", base+path, "", append(bearer(adaToken), "Accept", "text/html")...)
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: %q is missing in %q", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, h)
		}
	}
	// A browser gets an error as a page, not as JSON.
	code, h, text := request(t, "POST", base+"/ui/act/transition", "", append(bearer(adaToken), "Accept", "text/html", "Sec-Fetch-Site", "cross-site")...)
	if code != 403 || !strings.HasPrefix(h.Get("Content-Type"), "text/html") || h.Get("Content-Security-Policy") == "" || !strings.Contains(text, "another site") {
		t.Errorf("%d %v %s", code, h, text)
	}
}

// A page of another site cannot act in the name of a signed-in operator:
// neither with a form nor with a script.
func TestAnotherSitesPageCannotAct(t *testing.T) {
	m := newMemory(1)
	base, _ := serve(t, operator.Config{Workflows: m}) // on the loopback every caller is an operator
	evil := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<main><form method="post" action="%s/ui/act/transition"><input name="type" value="drone-survey"><input name="id" value="m-00000"><input name="phase" value="flying"><button>Win</button></form></main>`, base)
	}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	evil.Listener = ln
	evil.Start()
	defer evil.Close()
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workflows/drone-survey/m-00000")
	visit(t, ctx, evil.URL)
	if err := chromedp.Do(ctx, chromedp.Submit("form")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the refusal", `document.querySelector("[role=alert]")?.innerText.includes("another site")`)
	if e, err := m.Get(t.Context(), "", "m-00000"); err != nil || e.GetPhase() != "planning" {
		t.Errorf("it is %v, %v", e, err)
	}
	// The same form on the dashboard's own page does it.
	visit(t, ctx, base+"/ui/act/transition?type=drone-survey&id=m-00000&phase=flying")
	if err := chromedp.Do(ctx, chromedp.Submit("form.panel")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the outcome", `document.querySelector(".flash.good")?.innerText === "The transition is done."`)
}

// Every action has a page that says what will happen. A viewer gets
// neither the page nor the action, and no page offers it. An operator sees the
// outcome.
// A page that asks about what is not there says so, to every caller; so does the button of an old page.
func TestActionsOnWhatIsNotThere(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(2), Workers: newHosted(), Processes: newCommanded(), Auth: auth, Rate: 1e6})
	html := []string{"Accept", "text/html", "Content-Type", "application/x-www-form-urlencoded"}
	for name, about := range map[string]string{
		"drain": "process", "suspend": "process", "resume": "process", "restart-unit": "process",
		"start": "worker", "stop": "worker", "delete": "worker", "promote": "worker", "redrive": "worker", "discard": "worker",
		"pause": "entity", "unpause": "entity", "transition": "entity",
	} {
		form := url.Values{"id": {"nope"}, "type": {"drone-survey"}, "reason": {"x"}, "phase": {"aborted"}, "unit": {"x"}, "all": {"true"}, "note": {"x"}}
		for _, token := range []string{adaToken, vicToken} {
			as := append(bearer(token), html...)
			code, _, text := request(t, "GET", base+"/ui/act/"+name+"?"+form.Encode(), "", as...)
			if code != 404 || !strings.Contains(text, about) || strings.Contains(text, "<textarea") || strings.Contains(text, "you are a viewer") {
				t.Errorf("the page %s: %d %s", name, code, text)
			}
		}
		if about == "worker" { // the one of the test finds what it is told
			continue
		}
		code, _, text := request(t, "POST", base+"/ui/act/"+name, form.Encode(), append(bearer(adaToken), html...)...)
		if code != 404 || strings.Contains(text, `action="/ui/act/`) {
			t.Errorf("the button %s: %d %s", name, code, text)
		}
	}
}

// The dead letters of a worker that was deleted stay, and can be discarded on their page.
func TestLettersOfADeletedWorkerAreDiscarded(t *testing.T) {
	h := newHosted()
	h.dead["old"] = h.dead["enrich-orders"]
	base, _ := serve(t, operator.Config{Workers: h, LoopbackRole: operator.RoleOperator})
	code, _, text := request(t, "GET", base+"/ui/act/discard?id=old&letter=100", "", "Accept", "text/html")
	if code != 200 || !strings.Contains(text, "Discard for good") {
		t.Errorf("%d %s", code, text)
	}
	if code, _, text = request(t, "GET", base+"/ui/act/stop?id=old", "", "Accept", "text/html"); code != 404 {
		t.Errorf("a stop of it: %d %s", code, text)
	}
}

func TestActionsAreAskedForAndRefusedToViewers(t *testing.T) {
	_, auth := tokenFile(t)
	m, h, p := newMemory(2), newHosted(), newCommanded()
	base, _ := serve(t, operator.Config{Workflows: m, Workers: h, Processes: p, Auth: auth, Rate: 1e6})
	html := []string{"Accept", "text/html", "Content-Type", "application/x-www-form-urlencoded"}
	viewer, op := append(bearer(vicToken), html...), append(bearer(adaToken), html...)
	digest := h.list["notify"].GetVersions()[1].GetDigest()
	h.list["score"].Canary = &operatorv1.Canary{Digest: digest, Percent: 5}
	entity := func(id string) *operatorv1.Entity { e, _ := m.Get(t.Context(), "", id); return e }
	hosted := func(id string) *operatorv1.Worker { w, _ := h.Get(t.Context(), id); return w }
	letters := func() int { list, _ := h.DeadLetters(t.Context(), "enrich-orders", "", 0, 0); return len(list) }
	for name, is := range map[string]struct {
		form    url.Values
		page    string // the page that offers the action
		says    string // what will happen
		outcome string
		done    func() bool
	}{
		"transition": {url.Values{"type": {"drone-survey"}, "id": {"m-00000"}, "phase": {"aborted"}}, "/ui/workflows/drone-survey/m-00000", "cannot be undone", "The transition is done.", func() bool { return entity("m-00000").GetPhase() == "aborted" }},
		"patch": {url.Values{"type": {"drone-survey"}, "id": {"m-00001"}, "field": {"note"}, "value": {"careful"}}, "/ui/workflows/drone-survey/m-00001", "gets the value below", "The fields are changed.", func() bool {
			return entity("m-00001").GetFields().GetFields()["note"].GetStringValue() == "careful"
		}},
		"drain":    {url.Values{"id": {"p-1"}}, "/ui/processes/p-1", "the process ends", "begun to drain", func() bool { return p.was("drain") }},
		"suspend":  {url.Values{"id": {"p-1"}, "reason": {"a look at it"}}, "/ui/processes/p-1", "readiness goes down", "Readiness is suspended.", func() bool { return p.was("suspend") }},
		"resume":   {url.Values{"id": {"p-2"}}, "/ui/processes/p-2", "follows its checks again", "follows the checks again", func() bool { return p.was("resume") }},
		"start":    {url.Values{"id": {"notify"}}, "/ui/workers/notify", "gets messages again", "gets messages again", func() bool { return hosted("notify").GetState() == "running" }},
		"stop":     {url.Values{"id": {"enrich-orders"}}, "/ui/workers/enrich-orders", "Nothing is lost", "is stopped", func() bool { return hosted("enrich-orders").GetState() == "stopped" }},
		"rollback": {url.Values{"id": {"notify"}, "digest": {digest}}, "/ui/workers/notify", "between two messages", "earlier code", func() bool { return hosted("notify").GetDigest() == digest }},
		"redrive":  {url.Values{"id": {"enrich-orders"}, "letter": {"100", "101"}}, "", "2 dead letters go", "given to the worker again: 2.", func() bool { return letters() == 1 }},
		"edit":     {url.Values{"id": {"enrich-orders"}, "letter": {"102"}, "as": {"text"}, "value": {"a\r\nb"}}, "", "in place of this one", "edited message is given", func() bool { return h.did() == "edited 102: a\nb" }},
		"discard":  {url.Values{"id": {"enrich-orders"}, "letter": {"102"}, "note": {"a test"}}, "", "1 dead letter is removed", "discarded: 1.", func() bool { return h.did() == "discarded 102" }},
		"promote":  {url.Values{"id": {"score"}}, "/ui/workers/score", "gets every message", "version now", func() bool { return hosted("score").GetCanary() == nil }},
		"recover":  {url.Values{}, "/ui/workers", "One that fails", "could not be loaded: 1.", func() bool { return true }},
		"delete":   {url.Values{"id": {"resize-images"}}, "/ui/workers/resize-images", "cannot be undone", "is deleted", func() bool { return hosted("resize-images") == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			ask, act := base+"/ui/act/"+name+"?"+is.form.Encode(), base+"/ui/act/"+name
			link := `href="/ui/act/` + name
			if is.page != "" {
				if code, _, text := request(t, "GET", base+is.page, "", viewer...); code != 200 || strings.Contains(text, "/ui/act/") {
					t.Errorf("the page of a viewer offers actions (%d)", code)
				}
				if _, _, text := request(t, "GET", base+is.page, "", op...); !strings.Contains(text, link) {
					t.Errorf("the page of an operator does not offer it:\n%s", text)
				}
			}
			if code, _, _ := request(t, "GET", ask, "", viewer...); code != 403 {
				t.Errorf("a viewer is asked: %d", code)
			}
			changed := is.done()
			if code, _, text := request(t, "POST", act, is.form.Encode(), viewer...); code != 403 || is.done() != changed {
				t.Errorf("a viewer acts: %d %s", code, text)
			}
			code, _, text := request(t, "GET", ask, "", op...)
			if code != 200 || !strings.Contains(text, is.says) || !strings.Contains(text, "What will happen") || is.done() != changed {
				t.Errorf("the question (%d) does not say %q, or already acts:\n%s", code, is.says, text)
			}
			if code, _, _ := request(t, "POST", act, is.form.Encode(), append(slices.Clone(op), "Sec-Fetch-Site", "cross-site")...); code != 403 || is.done() != changed {
				t.Errorf("from another site: %d", code)
			}
			code, h, text := request(t, "POST", act, is.form.Encode(), op...)
			if code != 303 || !is.done() {
				t.Fatalf("an operator: %d %s", code, text)
			}
			if _, _, text := request(t, "GET", base+h.Get("Location"), "", op...); !strings.Contains(text, is.outcome) {
				t.Errorf("the outcome %q is missing at %s:\n%s", is.outcome, h.Get("Location"), text)
			}
		})
	}
	if code, _, text := request(t, "GET", base+"/ui/act/redrive?id=enrich-orders&chosen=1", "", op...); code != 200 || !strings.Contains(text, "no dead letter is chosen") || strings.Contains(text, "<button class=\"primary\"") {
		t.Errorf("nothing chosen: %d %s", code, text)
	}
	if code, _, text := request(t, "POST", base+"/ui/act/redrive", "id=enrich-orders", op...); code != 400 || letters() != 1 {
		t.Errorf("nothing chosen is not all: %d %s", code, text)
	}
}
