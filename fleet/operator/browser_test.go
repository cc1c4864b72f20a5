package operator_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/worker"
)

// hosted is a Workers in memory, for pages and requests. Package host tests
// the real host.
type hosted struct {
	operator.Workers
	mu   sync.Mutex
	list map[string]*operatorv1.Worker
	dead map[string][]*operatorv1.DeadLetter
	was  string // the last edit or discard
}

func newHosted() *hosted {
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }
	digest := func(c string) string { return "sha256:" + strings.Repeat(c, 64) }
	h := &hosted{list: map[string]*operatorv1.Worker{}, dead: map[string][]*operatorv1.DeadLetter{}}
	for i, w := range []*operatorv1.Worker{
		{Id: "resize-images", MimeType: "application/wasm", Topics: []string{"uploads.images"}, State: "running", Desired: "running", Digest: digest("a1b2"), Host: "host-7c9f", Backlog: 12},
		{Id: "enrich-orders", MimeType: "text/x-python", Topics: []string{"orders.created", "orders.changed"}, Group: "orders", State: "running", Desired: "running", Digest: digest("c3d4"), Host: "host-2b1a", DeadLetters: 3},
		{Id: "notify", MimeType: "text/javascript", Topics: []string{"alerts"}, State: "stopped", Desired: "stopped", Digest: digest("e5f6"), Backlog: 4031},
		{Id: "score", MimeType: "text/x-starlark", Topics: []string{"events.*"}, State: "failed", Desired: "running", Digest: digest("0789"), Error: "line 14: name \"scroe\" is not defined"},
	} {
		w.Digest = w.Digest[:7+64]
		w.CreatedAt, w.UpdatedAt = at(72*time.Hour), at(time.Duration(i)*7*time.Minute)
		w.Versions = []*operatorv1.CodeVersion{
			{Digest: w.Digest, Source: "inline", Who: "ada", At: at(2 * time.Hour), Bytes: 812, Succeeded: 18442, Failed: 12, DeadLettered: 3, Current: true},
			{Digest: digest("beef")[:7+64], Source: "https://code.example.com/v1.py", Who: "grace", At: at(72 * time.Hour), Bytes: 790, Succeeded: 991, Failed: 41},
		}
		h.list[w.Id] = w
	}
	for i := range 3 {
		h.dead["enrich-orders"] = append(h.dead["enrich-orders"], &operatorv1.DeadLetter{Id: fmt.Sprint(100 + i), WorkerId: "enrich-orders", Topic: "orders.created", Attempts: 4, Reason: "KeyError: 'customer'", At: at(time.Duration(i) * time.Hour), Data: []byte(`{"order": 8812, "items": ["<b>bold</b>"]}`), Size: 41})
	}
	return h
}

func (h *hosted) List(context.Context) ([]*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*operatorv1.Worker
	for _, w := range h.list {
		out = append(out, proto.CloneOf(w))
	}
	return out, nil
}

func (h *hosted) Get(_ context.Context, id string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.list[id]; w != nil {
		return proto.CloneOf(w), nil
	}
	return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no worker %q", id)
}

func (h *hosted) Start(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return h.set(ctx, id, "running")
}

func (h *hosted) Stop(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return h.set(ctx, id, "stopped")
}

func (h *hosted) set(ctx context.Context, id, state string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	if w := h.list[id]; w != nil {
		w.State, w.Desired = state, state
	}
	h.mu.Unlock()
	return h.Get(ctx, id)
}

func (h *hosted) Rollback(ctx context.Context, id, digest, _ string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	if w := h.list[id]; w != nil {
		w.Digest = digest
		for _, v := range w.GetVersions() {
			v.Current = v.GetDigest() == digest
		}
	}
	h.mu.Unlock()
	return h.Get(ctx, id)
}

func (h *hosted) Delete(_ context.Context, id, _ string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.list, id)
	return nil
}

func (h *hosted) Recover(context.Context, string) (*operatorv1.RecoverWorkersResponse, error) {
	return &operatorv1.RecoverWorkersResponse{Recovered: []string{"notify", "enrich-orders"}, Failures: []*operatorv1.RecoverWorkersResponse_Failure{{Id: "score", Error: "it does not load"}}}, nil
}

func (h *hosted) DeadLetters(_ context.Context, id, _ string, _ uint64, _ int) ([]*operatorv1.DeadLetter, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.list[id] == nil && len(h.dead[id]) == 0 {
		return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no worker %q", id)
	}
	var list []*operatorv1.DeadLetter
	for _, d := range h.dead[id] {
		list = append(list, proto.CloneOf(d))
	}
	return list, nil
}

func (h *hosted) Redrive(_ context.Context, id string, letters []uint64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.dead[id])
	if len(letters) > 0 {
		n = len(letters)
	}
	h.dead[id] = h.dead[id][n:]
	h.list[id].DeadLetters = int64(len(h.dead[id]))
	return n, nil
}

// stage makes a fleet: NATS, missions, three processes, hosted workers, and what also adds.
func stage(t *testing.T, also ...func(jetstream.JetStream)) (base string, mgr *workflow.Manager, ids []string) {
	t.Helper()
	js := brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")}}).JetStream()
	mgr = workflow.NewManager(js, brokertest.Quiet())
	t.Cleanup(func() { mgr.Close() })
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys); err != nil {
		t.Fatal(err)
	}
	walks := [][]string{{}, {"flying"}, {"flying", "capturing"}, {"flying", "capturing", "flying", "landing", "completed"}, {"aborted"}, {"flying", "landing", "failed"}, {"flying", "landing"}}
	for i := range 64 {
		id := fmt.Sprintf("acme.drones.north.survey.mission.%03d", i)
		if err := mgr.Create(t.Context(), &survey{ID: id, State: "planning", Org: []string{"acme", "globex"}[i%2], Priority: uint32(i % 4)}); err != nil {
			t.Fatal(err)
		}
		for _, to := range walks[i%len(walks)] {
			if err := mgr.Transition(t.Context(), "drone-survey", id, to, workflow.TransitionSourceRule, map[string]string{"capturing": "target in sight", "failed": "battery <b>low</b>"}[to]); err != nil {
				t.Fatal(err)
			}
		}
	}
	evil := `<img src=x onerror=alert(1)>`
	if err := mgr.Create(t.Context(), &survey{ID: "acme.evil.1", State: "planning", Org: evil, Comment: "</script><script>alert(1)</script>"}); err != nil {
		t.Fatal(err)
	}
	if err := mgr.Transition(t.Context(), "drone-survey", "acme.evil.1", "flying", workflow.TransitionSourceOperator, evil); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"missions", "missions", "gateway"} {
		app, err := lifecycle.New(lifecycle.Config{Name: name, HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		tree := worker.NewSupervisor("pool", worker.SupervisorConfig{})
		for _, child := range []string{"ingest", "index", "publish"} {
			if err := tree.Add(worker.FuncSpec(child, func(ctx context.Context) error { <-ctx.Done(); return nil })); err != nil {
				t.Fatal(err)
			}
		}
		app.Add(tree).Probe("nats", lifecycle.ProbeFunc(func(context.Context) error { return nil }), lifecycle.WithPeriodic(time.Second))
		ids = append(ids, presence.Announce(app, js, presence.Config{ID: fmt.Sprintf("%s-6d4f9-%d", name, i), Version: "v1.4.2", Logger: quiet}))
		done := make(chan struct{})
		go func() { defer close(done); app.Run(context.Background()) }()
		t.Cleanup(func() { app.Stop(nil); <-done })
	}
	for _, add := range also {
		add(js)
	}
	f, err := presence.Open(t.Context(), js, presence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "three processes that are ready", func() bool {
		list, err := f.List(t.Context())
		ready := 0
		for _, p := range list {
			if p.Ready {
				ready++
			}
		}
		return err == nil && ready == 3
	})
	base, _ = serve(t, operator.Config{Name: "north", Workflows: operator.FromManager(mgr), Processes: operator.FromPresence(f), Workers: newHosted()})
	return base, mgr, ids
}

// Every page, dark and light, wide and on a phone: no page is too wide, and the
// accessibility check finds nothing. With OPERATOR_SHOTS=DIR it saves pictures.
func TestPagesInABrowser(t *testing.T) {
	base, _, ids := stage(t)
	ctx := browser(t)
	id := url.PathEscape("acme.drones.north.survey.mission.003")
	ways := []string{"light-1280", "dark-360", "light-360", "dark-1280"}
	few := ways[:2]
	if testing.Short() {
		ways, few = ways[1:2], ways[:1]
	}
	both := looks(t, ctx, base, ways...)
	for name, path := range map[string]string{
		"fleet": "/ui/", "process": "/ui/processes/" + ids[0], "workflows": "/ui/workflows", "workflow": "/ui/workflows/drone-survey",
		"entity": "/ui/workflows/drone-survey/" + id, "workers": "/ui/workers", "worker": "/ui/workers/enrich-orders", "audit": "/ui/audit", "letters": "/ui/workers/enrich-orders/deadletters", "letter": "/ui/workers/enrich-orders/deadletters/100", "code": "/ui/workers/enrich-orders/diff",
		"ask": "/ui/act/transition?type=drone-survey&phase=aborted&id=acme.drones.north.survey.mission.001", "error": "/ui/workflows/unknown", "evil": "/ui/workflows/drone-survey/acme.evil.1",
	} {
		both(name, path)
	}
	some := looks(t, ctx, base, few...)
	for name, path := range map[string]string{
		"drain": "/ui/act/drain?id=" + ids[0], "suspend": "/ui/act/suspend?id=" + ids[0], "patch": "/ui/act/patch?type=drone-survey&field=comment&id=acme.evil.1", "stop": "/ui/act/stop?id=enrich-orders",
		"refused": "/ui/act/transition?type=drone-survey&phase=completed&id=acme.drones.north.survey.mission.001", "redrive": "/ui/act/redrive?id=enrich-orders&all=1", "unchosen": "/ui/act/redrive?id=enrich-orders&chosen=1",
		"nomatch": "/ui/workflows/drone-survey?contains=nowhere", "badfilter": "/ui/workflows/drone-survey?match=nonsense", "done": "/ui/workers?done=recover&n=3&failed=1", "nopage": "/ui/nothing/here", "service": "/ui/?service=gateway",
	} {
		some(name, path)
	}
}

// The login form, the answer to a wrong token, and the answer to a viewer who opens
// the page of an action.
func TestSignInAndRefusalsInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Name: "north", Workflows: newMemory(3), Auth: auth, Rate: 1e6})
	ctx := browser(t)
	all := looks(t, ctx, base, "light-1280", "light-360", "dark-1280", "dark-360")
	all("login", "/ui/login?next=%2Fui%2Fworkflows")
	// With the keyboard only: the field has the focus, Enter sends it.
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "the form", `location.pathname === "/ui/login" && document.activeElement.name === "token"`)
	press(t, ctx, "wrong-0123456789-0123456789"+kb.Enter)
	await(t, ctx, "the refusal", `document.querySelector("[role=alert]")?.innerText.includes("not known")`)
	accessible(t, ctx, axeScript(t), "a wrong token")
	press(t, ctx, vicToken+kb.Enter)
	await(t, ctx, "the page that was asked for", `location.pathname === "/ui/workflows/drone-survey" && document.querySelectorAll("#entities tbody tr").length === 3`)
	visit(t, ctx, base+"/ui/workflows/drone-survey/m-00000")
	if n := evaluate[int](t, ctx, `document.querySelectorAll("a[href*='/ui/act/']").length`); n != 0 {
		t.Errorf("a viewer is offered %d actions", n)
	}
	all("forbidden", "/ui/act/transition?type=drone-survey&id=m-00000&phase=flying")
	await(t, ctx, "the refusal", `document.querySelector("h1").innerText === "Forbidden" && document.querySelector("[role=alert]").innerText.includes("viewer")`)
	// The session ends in another window while a page is open.
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "live", isLive)
	if _, err := chromedp.Call(ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	evaluate[any](t, ctx, `document.dispatchEvent(new Event("visibilitychange")), null`) // as when the user returns to the window
	await(t, ctx, "the word that one is signed out", `document.querySelector("#notice a")?.href.includes("/ui/login?next=%2Fui%2Fworkflows%2Fdrone-survey")`)
	accessible(t, ctx, axeScript(t), "signed out")
}

// The pages of an empty fleet say that it is empty, and how to add to it.
func TestEmptyPagesInABrowser(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	base, _ := serve(t, operator.Config{Name: "north", Workflows: newMemory(0), Workers: &hosted{}, Processes: announced{}})
	some := looks(t, browser(t), base, "light-1280", "dark-360")
	for name, path := range map[string]string{"fleet": "/ui/", "workflows": "/ui/workflows", "workflow": "/ui/workflows/drone-survey", "workers": "/ui/workers", "audit": "/ui/audit"} {
		some("empty-"+name, path)
	}
}

// Names of 200 characters without a place to break, and a tree that is deeper
// than the page is wide, do not make a page wider than the screen.
func TestLongNamesFit(t *testing.T) {
	if testing.Short() {
		t.Skip("long: every page with long names")
	}
	s := newScene(long)
	base, _ := serve(t, s.config())
	some := looks(t, browser(t), base, "light-1280", "dark-360")
	for name, path := range s.pages() {
		some("long-"+name, path)
	}
}

// looks returns a function that checks one page in each way, a theme and a width.
func looks(t *testing.T, ctx context.Context, base string, ways ...string) func(name, path string) {
	t.Helper()
	axe, shots := axeScript(t), os.Getenv("OPERATOR_SHOTS")
	return func(name, path string) {
		t.Helper()
		for _, way := range ways {
			theme, text, _ := strings.Cut(way, "-")
			width, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			what := name + "-" + way
			prefer(t, ctx, &emulation.MediaFeature{Name: "prefers-color-scheme", Value: theme}, &emulation.MediaFeature{Name: "prefers-reduced-motion", Value: "reduce"})
			if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 800)); err != nil {
				t.Fatal(err)
			}
			visit(t, ctx, base+path)
			if wide := evaluate[int64](t, ctx, `document.documentElement.scrollWidth`); wide > width {
				t.Errorf("%s is %d wide", what, wide)
			}
			if n := evaluate[int](t, ctx, foreign); n != 0 {
				t.Errorf("%s has %d elements that a page of ours does not have", what, n)
			}
			if n := evaluate[int](t, ctx, `document.getAnimations().length`); n != 0 {
				t.Errorf("%s moves although the user prefers reduced motion", what)
			}
			accessible(t, ctx, axe, what)
			if shots == "" {
				continue
			}
			shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(shots, what+".png"), shot, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// prefer sets what the user of the browser prefers.
func prefer(t *testing.T, ctx context.Context, features ...*emulation.MediaFeature) {
	t.Helper()
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}); err != nil {
		t.Fatal(err)
	}
}

// foreign counts elements that our pages never have. Only a text that became
// markup could add them.
const foreign = `document.querySelectorAll("img, iframe, script:not([src='/ui/static/live.js'], [src='/ui/static/keys.js']), style, [onerror], [onload], [onclick], [style], [href^='javascript']").length`

// An operator aborts a mission with the keyboard only, and another user's page
// updates itself.
func TestKeyboardAloneAndLive(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	base, mgr, _ := stage(t)
	ctx := browser(t)
	entity := "/ui/workflows/drone-survey/acme.drones.north.survey.mission.001"
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1280, 800), chromedp.Navigate(base+entity), chromedp.WaitReady("main")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "live", isLive)
	// Another caller moves it, and the page follows: picture, history, actions.
	if err := mgr.Transition(t.Context(), "drone-survey", "acme.drones.north.survey.mission.001", "capturing", workflow.TransitionSourceRule, "target in sight"); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the change", `document.querySelector(".diagram .now title")?.textContent === "capturing" && document.querySelector(".history").innerText.includes("target in sight")`)
	tabTo(t, ctx, "flying…")
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the question", `document.querySelector("h1")?.innerText.includes("capturing → flying") && document.activeElement.name === "note"`)
	if err := chromedp.Do(ctx, chromedp.KeyEvent("done here")); err != nil {
		t.Fatal(err)
	}
	tabTo(t, ctx, "Move to flying")
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the answer", `document.querySelector(".flash")?.innerText === "The transition is done." && document.querySelector(".history").innerText.includes("done here (loopback)")`)
	p, err := mgr.Get(t.Context(), "drone-survey", "acme.drones.north.survey.mission.001")
	if err != nil || p.Phase() != "flying" {
		t.Errorf("it is %v, %v", p, err)
	}
}

// troubled returns what adds a process whose database refuses it.
func troubled(t *testing.T) func(jetstream.JetStream) {
	return func(js jetstream.JetStream) {
		app, err := lifecycle.New(lifecycle.Config{Name: "orders", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		refused := errors.New("dial tcp 10.0.3.7:5432: connect: connection refused")
		app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return refused }), lifecycle.WithPeriodic(100*time.Millisecond))
		presence.Announce(app, js, presence.Config{ID: "orders-7c9d8-0", Version: "v1.5.0"})
		done := make(chan struct{})
		go func() { defer close(done); app.Run(context.Background()) }()
		t.Cleanup(func() { app.Stop(nil); <-done })
	}
}

// The picture in the documents, of the front page: what is wrong, the worst first. "make
// docs" makes it.
func TestDashboardPicture(t *testing.T) {
	file := os.Getenv("DASHBOARD_PICTURE")
	if file == "" {
		t.Skip("DASHBOARD_PICTURE is not set; make docs sets it")
	}
	base, _, _ := stage(t, troubled(t))
	ctx := browser(t)
	prefer(t, ctx, &emulation.MediaFeature{Name: "prefers-color-scheme", Value: "light"})
	if err := chromedp.Do(ctx,
		chromedp.EmulateViewport(1180, 880, chromedp.EmulateScale(1.5)),
		chromedp.Navigate(base+"/ui/"), chromedp.WaitVisible(".findings tbody tr:nth-child(3)")); err != nil {
		t.Fatal(err)
	}
	shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, marked(shot, pictured(t)), 0o644); err != nil {
		t.Fatal(err)
	}
}
