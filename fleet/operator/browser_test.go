package operator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
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

// browser starts Chromium. What a page says on its console, and what it asks of
// any other server, is an error of the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if path, err = exec.LookPath("google-chrome"); err != nil {
			t.Skip("no chromium and no google-chrome on this machine: the dashboard is tested in a real browser only")
		}
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	ctx, timeout := context.WithTimeout(ctx, 4*time.Minute)
	t.Cleanup(func() { timeout(); chromedp.Cancel(ctx); cancel(); stop() })
	if err := chromedp.Run(ctx, network.Enable(), log.Enable()); err != nil {
		t.Fatalf("chromium does not start: %v", err)
	}
	var mu sync.Mutex
	closed := false
	t.Cleanup(func() { mu.Lock(); defer mu.Unlock(); closed = true })
	complain := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if !closed {
			t.Errorf(format, args...)
		}
	}
	chromedp.ListenTarget(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			if ev.Entry.Source == log.SourceSecurity || ev.Entry.Source == log.SourceJavascript {
				complain("the browser says: %s (%s)", ev.Entry.Text, ev.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(ev.Request.URL); err == nil && u.Scheme != "data" && u.Hostname() != "127.0.0.1" && u.Scheme != "chrome" {
				complain("the page asks %s", ev.Request.URL)
			}
		}
	})
	return ctx
}

// hosted is a Workers in memory, for pages and requests; the host itself is
// another room.
type hosted struct {
	operator.Workers
	mu   sync.Mutex
	list map[string]*operatorv1.Worker
	dead map[string][]*operatorv1.DeadLetter
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
		out = append(out, w)
	}
	return out, nil
}

func (h *hosted) Get(_ context.Context, id string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.list[id]; w != nil {
		return w, nil
	}
	return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no worker %q", id)
}

func (h *hosted) Stop(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	w, err := h.Get(ctx, id)
	if err == nil {
		w.State, w.Desired = "stopped", "stopped"
	}
	return w, err
}

func (h *hosted) DeadLetters(_ context.Context, id, _ string, _ int) ([]*operatorv1.DeadLetter, error) {
	return h.dead[id], nil
}

func (h *hosted) Redrive(_ context.Context, id string, ids []string, _ string) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.dead[id])
	if len(ids) > 0 {
		n = len(ids)
	}
	h.dead[id] = h.dead[id][n:]
	h.list[id].DeadLetters = int64(len(h.dead[id]))
	return int64(n), nil
}

// stage is a fleet to look at: NATS, missions, three processes, hosted workers.
func stage(t *testing.T) (base string, mgr *workflow.Manager, ids []string) {
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
		ids = append(ids, presence.Announce(app, js, presence.Config{ID: fmt.Sprintf("%s-6d4f9-%d", name, i), Version: "v1.4.2", Log: quiet}))
		done := make(chan struct{})
		go func() { defer close(done); app.Run(context.Background()) }()
		t.Cleanup(func() { app.Stop(nil); <-done })
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

// accessible runs axe in the page and fails for everything that it finds.
func accessible(t *testing.T, ctx context.Context, axe, what string) {
	t.Helper()
	var found string
	// The page's own policy forbids scripts from elsewhere; the debugger may.
	err := chromedp.Run(ctx, chromedp.Evaluate(axe+"\n;0", nil),
		chromedp.Evaluate(`axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations.map(v => v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map(n => n.html).join(" | "))))`,
			&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	if err != nil {
		t.Fatalf("%s: axe: %v", what, err)
	}
	var list []string
	if err := json.Unmarshal([]byte(found), &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list {
		t.Errorf("%s: %s", what, v)
	}
}

func axeScript(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("testdata", "axe")
	file := filepath.Join(dir, "node_modules", "axe-core", "axe.min.js")
	if text, err := os.ReadFile(file); err == nil {
		return string(text)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("no npm on this machine to fetch the accessibility check with")
	}
	cmd := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every page, dark and light, wide and on a phone: nothing sticks out, and the
// accessibility check finds nothing. With OPERATOR_SHOTS=DIR it leaves pictures.
func TestPagesInABrowser(t *testing.T) {
	base, _, ids := stage(t)
	axe := axeScript(t)
	ctx := browser(t)
	shots := os.Getenv("OPERATOR_SHOTS")
	id := url.PathEscape("acme.drones.north.survey.mission.003")
	for name, path := range map[string]string{
		"fleet": "/ui/", "process": "/ui/processes/" + ids[0], "workflows": "/ui/workflows", "workflow": "/ui/workflows/drone-survey",
		"entity": "/ui/workflows/drone-survey/" + id, "workers": "/ui/workers", "worker": "/ui/workers/enrich-orders", "audit": "/ui/audit",
		"ask": "/ui/act/transition?type=drone-survey&phase=aborted&id=acme.drones.north.survey.mission.001", "error": "/ui/workflows/unknown", "evil": "/ui/workflows/drone-survey/acme.evil.1",
	} {
		for _, theme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 360} {
				what := fmt.Sprintf("%s-%s-%d", name, theme, width)
				var wide, scripts int
				var shot []byte
				err := chromedp.Run(ctx,
					emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}}),
					chromedp.EmulateViewport(width, 800),
					chromedp.Navigate(base+path), chromedp.WaitReady("main"),
					chromedp.Evaluate(`document.documentElement.scrollWidth`, &wide),
					chromedp.Evaluate(`document.querySelectorAll("img, script:not([src]), [onerror], [style]").length`, &scripts),
				)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if int64(wide) > width {
					t.Errorf("%s is %d wide", what, wide)
				}
				if scripts != 0 {
					t.Errorf("%s has %d elements that a page of ours does not have", what, scripts)
				}
				accessible(t, ctx, axe, what)
				if shots != "" {
					if err := chromedp.Run(ctx, chromedp.FullScreenshot(&shot, 100)); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(shots, what+".png"), shot, 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// An operator aborts a mission with the keyboard alone, and a page that shows it
// to somebody else changes by itself.
func TestKeyboardAloneAndLive(t *testing.T) {
	base, mgr, _ := stage(t)
	ctx := browser(t)
	entity := "/ui/workflows/drone-survey/acme.drones.north.survey.mission.001"
	var text string
	focus := func(want string) { // goes on until the focus is on what has that text
		t.Helper()
		for range 60 {
			if err := chromedp.Run(ctx, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(`document.activeElement.textContent.trim() || document.activeElement.name || ""`, &text)); err != nil {
				t.Fatal(err)
			}
			if text == want {
				return
			}
		}
		t.Fatalf("the Tab key does not reach %q", want)
	}
	await := func(what, script string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			var is bool
			// Between two pages there is nothing to evaluate it in.
			if err := chromedp.Run(ctx, chromedp.Evaluate("!!("+script+")", &is)); err == nil && is {
				return
			}
			if time.Now().After(end) {
				var body string
				chromedp.Run(ctx, chromedp.Evaluate(`location.href + "\n" + document.body.innerText`, &body))
				t.Fatalf("%s does not come:\n%s", what, body)
			}
		}
	}
	if err := chromedp.Run(ctx, chromedp.EmulateViewport(1280, 800), chromedp.Navigate(base+entity), chromedp.WaitReady("main")); err != nil {
		t.Fatal(err)
	}
	await("live", `document.getElementById("live")?.dataset.state === "on"`)
	// Somebody else moves it, and the page follows: picture, history, actions.
	if err := mgr.Transition(t.Context(), "drone-survey", "acme.drones.north.survey.mission.001", "capturing", workflow.TransitionSourceRule, "target in sight"); err != nil {
		t.Fatal(err)
	}
	await("the change", `document.querySelector(".diagram .now title")?.textContent === "capturing" && document.querySelector(".history").innerText.includes("target in sight")`)
	focus("flying…")
	if err := chromedp.Run(ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	await("the question", `document.querySelector("h1")?.innerText.includes("capturing → flying") && document.activeElement.name === "note"`)
	if err := chromedp.Run(ctx, chromedp.KeyEvent("done here")); err != nil {
		t.Fatal(err)
	}
	focus("Move to flying")
	if err := chromedp.Run(ctx, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	await("the answer", `document.querySelector(".flash")?.innerText === "The transition is done." && document.querySelector(".history").innerText.includes("done here (loopback)")`)
	p, err := mgr.Get(t.Context(), "drone-survey", "acme.drones.north.survey.mission.001")
	if err != nil || p.Phase() != "flying" {
		t.Errorf("it is %v, %v", p, err)
	}
}

// The picture in the documents: "make docs" asks for it.
func TestDashboardPicture(t *testing.T) {
	file := os.Getenv("DASHBOARD_PICTURE")
	if file == "" {
		t.Skip("DASHBOARD_PICTURE does not say where to; make docs does")
	}
	base, _, _ := stage(t)
	ctx := browser(t)
	var shot []byte
	if err := chromedp.Run(ctx,
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}),
		chromedp.EmulateViewport(1180, 780, chromedp.EmulateScale(1.5)),
		chromedp.Navigate(base+"/ui/workflows/drone-survey/acme.drones.north.survey.mission.002"), chromedp.WaitVisible(".diagram .now"),
		chromedp.CaptureScreenshot(&shot)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, shot, 0o644); err != nil {
		t.Fatal(err)
	}
}
