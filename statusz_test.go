package lifecycle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"github.com/pleme-io/lifecycle-go/worker"
)

func statusz(h http.Handler, method, target, accept string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	req := httptest.NewRequest(method, target, nil)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	h.ServeHTTP(w, req)
	return w
}

const hostile = `<script>alert("1")</script>&'`

func TestStatuszShowsTheWholeTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitAlways})
		r.Go(hostile, untilCancelled)
		fails := 2
		r.Supervise("poller", func(ctx context.Context) error {
			if fails--; fails >= 0 {
				return errBoom
			}
			return untilCancelled(ctx)
		}, lifecycle.DefaultBackoff())
		r.Serve("http", &http.Server{}, lifecycle.WithListener(lifecycletest.NewListener()))
		r.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return io.ErrUnexpectedEOF }))
		r.OnDrain("stream", lifecycle.DrainFunc(func(context.Context) error { panic(hostile) }))
		release := make(chan struct{})
		r.OnShutdown("stuck", func(context.Context) error { <-release; return nil })
		r.after(time.Minute, func() {
			var s lifecycle.Status
			if err := json.Unmarshal(statusz(r.Handler(), "GET", "/statusz?format=json", "").Body.Bytes(), &s); err != nil {
				t.Fatal(err)
			}
			if s.Report.Phase != lifecycle.PhaseRunning || len(s.Units) != 3 || len(s.Servers) != 1 || len(s.Probes) != 2 {
				t.Errorf("status of a running app: %+v", s)
			}
			if p := s.Units[1]; p.Restarts != 2 || len(p.Children) != 1 || p.Children[0].Status != worker.StatusRunning {
				t.Errorf("the supervised unit: %+v", p)
			}
			r.Stop(nil)
		})
		r.after(time.Minute+5500*time.Millisecond, func() {
			page := statusz(r.Handler(), "GET", "/statusz", "").Body.String()
			for _, want := range []string{"draining", "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt;&amp;&#39;", "poller", "unexpected EOF", "Waiting for", "App.Stop was called"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %q", want)
				}
			}
		})
		_ = r.Run(context.Background())
		close(release)
		synctest.Wait()

		w := statusz(r.Handler(), "GET", "/statusz", "text/html,application/xhtml+xml,*/*;q=0.8")
		page := w.Body.String()
		if w.Code != 200 || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		for _, want := range []string{"failed", "abandoned", "Shutdown hooks", "prefers-color-scheme: dark", "width=device-width"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %q", want)
			}
		}
		for name, bad := range map[string]string{
			"markup of others": `<script|\son[a-z]+=`, "something from elsewhere": `https?://|src=|@import|url\(`, "a stack": `goroutine \d+|\.go:\d+ \+0x`,
		} {
			if found := regexp.MustCompile(bad).FindString(page); found != "" {
				t.Errorf("the page has %s: %q", name, found)
			}
		}
		if strings.Contains(statusz(r.Handler(), "GET", "/statusz?format=json", "").Body.String(), `"stack"`) {
			t.Error("the JSON has stacks")
		}
		if !strings.Contains(r.Report().Hooks[0].Stack, "goroutine") {
			t.Error("the report has lost its stacks")
		}
		if dir := os.Getenv("STATUSZ_PAGE"); dir != "" { // to look at it
			_ = os.WriteFile(filepath.Join(dir, "statusz.html"), []byte(page), 0o600)
		}
	})
}

func TestStatuszFormats(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	for _, c := range []struct {
		method, target, accept string
		code                   int
		ctype                  string
	}{
		{"GET", "/statusz", "", 200, "text/html"}, {"GET", "/statusz", "*/*", 200, "text/html"},
		{"GET", "/statusz", "application/json", 200, "application/json"},
		{"GET", "/statusz", "text/html;q=0.9, application/json", 200, "text/html"},
		{"GET", "/statusz", "Application/JSON;q=1, text/html", 200, "application/json"},
		{"GET", "/statusz?format=json", "text/html", 200, "application/json"},
		{"GET", "/statusz?format=html", "application/json", 200, "text/html"},
		{"HEAD", "/statusz", "", 200, "text/html"},
		{"GET", "/statusz?format=mermaid", "", 200, "text/plain"}, {"GET", "/statusz?format=dot", "application/json", 200, "text/plain"},
		{"GET", "/statusz?format=xml", "", 400, "text/plain"}, {"GET", "/statusz?x=" + strings.Repeat("x", 5000), "", 400, "text/plain"},
		{"POST", "/statusz", "", 405, "text/plain"}, {"GET", "/statusz/", "", 404, "text/plain"},
	} {
		w := statusz(r.Handler(), c.method, c.target, c.accept)
		if w.Code != c.code || !strings.HasPrefix(w.Header().Get("Content-Type"), c.ctype) {
			t.Errorf("%s %.40s with Accept %q: %d %s, want %d %s", c.method, c.target, c.accept, w.Code, w.Header().Get("Content-Type"), c.code, c.ctype)
		}
		if c.method == "HEAD" && w.Body.Len() > 0 {
			t.Error("HEAD has a body")
		}
	}
	off := newRig(t, lifecycle.Config{StatuszOff: true})
	if w := statusz(off.Handler(), "GET", "/statusz", ""); w.Code != http.StatusNotFound {
		t.Errorf("turned off: %d, want 404", w.Code)
	}
}

// A foreign worker may return any State.
func TestStatuszSurvivesAnyTree(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	w := &endlessTree{}
	w.Init("tree", "endless")
	r.Add(w)
	for _, format := range []string{"html", "json", "mermaid", "dot"} {
		if rec := statusz(r.Handler(), "GET", "/statusz?format="+format, ""); rec.Code != 200 || rec.Body.Len() > 1<<20 {
			t.Errorf("%s: %d with %d bytes", format, rec.Code, rec.Body.Len())
		}
	}
}

type rudeState struct{ worker.BaseWorker }

func (*rudeState) Start(context.Context) error { return nil }
func (*rudeState) Stop(context.Context) error  { return nil }
func (*rudeState) State() worker.State         { panic(errBoom) }

func TestStatuszSurvivesAStateThatPanics(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	w := &rudeState{}
	w.Init("rude", "rude")
	r.Add(w)
	if rec := statusz(r.Handler(), "GET", "/statusz", ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), "State: panic: boom") {
		t.Errorf("%d\n%s", rec.Code, rec.Body)
	}
}

func TestStatusOfAWorkerThatPanics(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	w := &broken{mode: "State"}
	w.Init("broken", "w")
	r.Add(w).Go("good", untilCancelled)
	rec := statusz(r.Handler(), "GET", "/statusz?format=json", "")
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), "w: State: panic: State") || !strings.Contains(rec.Body.String(), `"good"`) {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

type endlessTree struct{ worker.BaseWorker }

func (e *endlessTree) Start(context.Context) error { return nil }
func (e *endlessTree) Stop(context.Context) error  { return nil }
func (e *endlessTree) State() worker.State {
	s := worker.State{Name: strings.Repeat("x", 10000), Status: "odd"}
	for range 100 {
		s = worker.State{Name: "node\xff", Children: []worker.State{s}}
	}
	return s
}

// knot is a worker whose State contains itself twice, so that its tree has no end
// in width or in depth.
type knot struct{ endlessTree }

func (*knot) State() worker.State {
	children := make([]worker.State, 2)
	children[0].Children, children[1].Children = children, children
	return worker.State{Name: "knot", Status: worker.StatusRunning, Children: children}
}

func TestStatuszSurvivesAStateThatHoldsItself(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	w := &knot{}
	w.Init("tree", "knot")
	r.Add(w)
	for format, code := range map[string]int{"html": 200, "mermaid": 200, "dot": 200, "json": 500} {
		if rec := statusz(r.Handler(), "GET", "/statusz?format="+format, ""); rec.Code != code || rec.Body.Len() > 64<<20 {
			t.Errorf("%s: %d with %d bytes", format, rec.Code, rec.Body.Len())
		} else if says := strings.Contains(rec.Body.String(), "There are more"); says != (format == "html") {
			t.Errorf("%s says that it leaves some out: %v", format, says)
		}
	}
}

// On real sockets, as a kubelet and a person reach it.
func TestStatuszAndPreStopOnTheHealthAddress(t *testing.T) {
	r := newRig(t, lifecycle.Config{
		HealthAddr: "127.0.0.1:0", DrainInterval: 200 * time.Millisecond, DrainWait: lifecycle.WaitAlways, AdminToken: lifecycle.Secret(token),
	})
	over := make(chan error, 1)
	go func() { over <- r.Run(context.Background()) }()
	<-r.Reached(lifecycle.PhaseRunning)
	base := "http://" + r.HealthAddr().String()
	if got := fetch(t, base+"/statusz?format=json"); !strings.HasPrefix(got, "200 {") || !strings.Contains(got, `"running"`) {
		t.Errorf("/statusz is %.200s", got)
	}
	if got := fetch(t, base+"/admin/prestop"); !strings.HasPrefix(got, "401 ") || r.Phase() != lifecycle.PhaseRunning {
		t.Errorf("preStop without a token: %s, phase %s", got, r.Phase())
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/admin/prestop", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("preStop: %s", resp.Status)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	if rep := r.Report(); rep.Window != "full" {
		t.Errorf("window %q, want full", rep.Window)
	}
}

// With html/template the linker could not leave out unused exported methods.
func TestStatuszCostsNoTemplates(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if dep == "html/template" || dep == "text/template" {
			t.Errorf("the package imports %s", dep)
		}
	}
}

func BenchmarkStatusz(b *testing.B) {
	r, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range strings.Split("abcdefghij", "") {
		r.Go(name, untilCancelled)
		r.Probe(name, lifecycle.ProbeFunc(func(context.Context) error { return nil }))
	}
	h := r.Handler()
	for b.Loop() {
		statusz(h, "GET", "/statusz", "")
	}
}

// blocked is a foreign unit whose methods do not return.
type blocked struct {
	worker.BaseWorker
	method  string
	release chan struct{}
}

func (b *blocked) Start(ctx context.Context) error {
	if err := b.Begin(ctx); err != nil {
		return err
	}
	b.MarkRunning()
	return nil
}

func (b *blocked) Stop(context.Context) error { b.RequestStop(nil); b.Finish(errBoom); return nil }

func (b *blocked) wait(method string) {
	if b.method == method {
		<-b.release
	}
}

func (b *blocked) State() worker.State   { b.wait("State"); return b.BaseWorker.State() }
func (b *blocked) Status() worker.Status { b.wait("Status"); return b.BaseWorker.Status() }
func (b *blocked) Err() error            { b.wait("Err"); return b.BaseWorker.Err() }
func (b *blocked) Done() <-chan struct{} { b.wait("Done"); return b.BaseWorker.Done() }

// A worker that does not answer does not delay readers of its status for long,
// and each reader leaves no further goroutine behind. The stop does not wait for it either: the
// worker is in the error, and the hooks run.
func TestUnitThatDoesNotAnswer(t *testing.T) {
	for _, method := range []string{"State", "Status", "Err", "Done"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{})
				w := &blocked{method: method, release: make(chan struct{})}
				w.Init("blocked", "w")
				r.Add(w).Go("good", untilCancelled).OnShutdown("db", func(context.Context) error { r.mark("db closed"); return nil })
				r.after(time.Minute, func() {
					for range 100 {
						began := time.Now()
						rec := statusz(r.Handler(), "GET", "/statusz?format=json", "")
						if took := time.Since(began); took > 2*time.Second || rec.Code != 200 || !strings.Contains(rec.Body.String(), `"good"`) {
							t.Fatalf("%d after %v: %s", rec.Code, took, rec.Body)
						}
						if method == "State" && !strings.Contains(rec.Body.String(), "State: did not return within 1s") {
							t.Fatalf("it says %s", rec.Body)
						}
					}
					if n := runtime.NumGoroutine(); n > 80 {
						t.Errorf("%d goroutines after 100 looks", n)
					}
					r.Stop(nil)
				})
				ended := make(chan error, 1)
				go func() { ended <- r.Run(context.Background()) }()
				select {
				case err := <-ended:
					wantErr(t, err, nil, "unit w: ")
				case <-time.After(10 * time.Minute):
					t.Error("Run does not return")
				}
				if len(r.trail) != 1 {
					t.Error("the hook did not run")
				}
				close(w.release)
				synctest.Wait()
			})
		})
	}
}

// The page lists the children of a supervisor below it, and the tree is there as Mermaid
// and DOT.
func TestStatuszListsTheTree(t *testing.T) {
	r := newRig(t, lifecycle.Config{})
	name := r.Report().Name
	pool := worker.NewSupervisor("pool", worker.SupervisorConfig{})
	for i := range 5 {
		if err := pool.Add(worker.FuncSpec(fmt.Sprintf("w%d %s", i, hostile), untilCancelled)); err != nil {
			t.Fatal(err)
		}
	}
	r.Add(pool)
	page := statusz(r.Handler(), "GET", "/statusz", "").Body.String()
	if strings.Contains(page, "<script>") || !strings.Contains(page, "w4 &lt;script") || !strings.Contains(page, "padding-left: 1.2em") {
		t.Errorf("the page does not list the children:\n%s", page)
	}
	mermaid := statusz(r.Handler(), "GET", "/statusz?format=mermaid", "").Body.String()
	if !strings.HasPrefix(mermaid, "flowchart TD\n") || !strings.Contains(mermaid, "n0 --> n1") || !strings.Contains(mermaid, name+"<br/>app") {
		t.Errorf("Mermaid:\n%s", mermaid)
	}
	if dot := statusz(r.Handler(), "GET", "/statusz?format=dot", "").Body.String(); !strings.HasPrefix(dot, "digraph") {
		t.Errorf("DOT:\n%s", dot)
	}
}
