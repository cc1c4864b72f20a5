package operator_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// The pages of hosted workers, of workflows and of the audit update
// themselves, and a checked box stays checked.
func TestWorkersWorkflowsAndAuditAreLive(t *testing.T) {
	if testing.Short() {
		t.Skip("in a short run TestPagesInABrowser stands for all that a browser sees: make test-long runs it")
	}
	h, m := newHosted(), newMemory(3)
	base, _ := serve(t, operator.Config{Workflows: m, Workers: h})
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workers")
	await(t, ctx, "live", isLive)
	if _, err := h.Stop(t.Context(), "resize-images", "ada"); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the stop", `document.querySelector("tr[data-key='resize-images'] .state").textContent === "stopped"`)
	h.Delete(t.Context(), "score", "ada")
	await(t, ctx, "the deletion", `!document.querySelector("tr[data-key=score]") && document.querySelector(".figure").textContent === "3"`)

	visit(t, ctx, base+"/ui/workers/enrich-orders")
	await(t, ctx, "live", isLive)
	evaluate[any](t, ctx, `document.querySelector("[value='102']").click(), document.querySelector("[value='102']").focus(), window.before = document.querySelector("[value='102']"), null`)
	if _, err := h.Redrive(t.Context(), "enrich-orders", []uint64{100}); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, "the letter's going", `!document.querySelector("[value='100']")`)
	if !evaluate[bool](t, ctx, `document.querySelector("[value='102']").checked && document.activeElement === window.before`) {
		t.Error("a change removed the check mark or the focus of an unchanged element")
	}

	visit(t, ctx, base+"/ui/workflows")
	await(t, ctx, "live", isLive)
	m.add("m-new", mission{})
	await(t, ctx, "the new one's count", `document.querySelector(".figures b").textContent === "4"`)

	visit(t, ctx, base+"/ui/audit")
	await(t, ctx, "live", isLive)
	if code, _, text := request(t, "POST", base+"/workflows/drone-survey/m-new/transition", `{"phase":"flying","note":"up"}`); code != 200 {
		t.Fatal(text)
	}
	await(t, ctx, "the entry", `document.querySelector("tbody")?.innerText.includes("m-new")`)
}

// When its server goes, a page says so and how old its content is. It recovers
// with the server.
func TestPageOutlivesItsServer(t *testing.T) {
	m := newMemory(3)
	addr := brokertest.FreeAddr(t)
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	run := func(ln net.Listener) (stop func()) {
		s, err := operator.New(operator.Config{Workflows: m, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		srv := s.HTTPServer()
		done := make(chan struct{})
		go func() { defer close(done); srv.Serve(ln) }()
		return sync.OnceFunc(func() { srv.Close(); s.Close(context.Background()); <-done })
	}
	stop := run(ln)
	defer func() { stop() }()
	ctx := browser(t)
	page := "http://" + addr + "/ui/workflows/drone-survey"
	visit(t, ctx, page)
	await(t, ctx, "live", isLive)
	stop()
	await(t, ctx, "the word that it is away", `document.getElementById("notice").innerText.startsWith("The server does not answer. What you see is from") && !(`+isLive+`)`)
	accessible(t, ctx, axeScript(t), "away")
	if n := evaluate[int](t, ctx, `document.querySelectorAll("#entities tbody tr").length`); n != 3 {
		t.Errorf("the page no longer shows its content: %d rows", n)
	}
	m.add("m-later", mission{})
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	stop = run(ln)
	await(t, ctx, "the recovery", isLive+` && document.getElementById("notice").innerText === "" && !!document.querySelector("[data-key=m-later]")`)
	m.add("m-last", mission{})
	await(t, ctx, "a change after it", `document.querySelector("[data-key=m-last]")`)
}

// A server that stands still keeps its connections and sends nothing: the page says within 15
// seconds that it is not live, and is live again when the server goes on.
func TestPageOfAServerThatStandsStill(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(3)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var still sync.RWMutex // held while the server stands still
	pass := func(to, from net.Conn) {
		defer to.Close()
		for b := make([]byte, 32<<10); ; {
			n, err := from.Read(b)
			still.RLock()
			_, failed := to.Write(b[:n])
			still.RUnlock()
			if err != nil || failed != nil {
				return
			}
		}
	}
	var passing sync.WaitGroup
	over := make(chan struct{})
	defer func() {
		close(over)
		ln.Close()
		passing.Wait()
	}()
	passing.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { <-over; c.Close() })
			up, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
			if err != nil {
				c.Close()
				continue
			}
			passing.Go(func() { pass(up, c) })
			passing.Go(func() { pass(c, up) })
		}
	})
	ctx := browser(t)
	visit(t, ctx, "http://"+ln.Addr().String()+"/ui/workflows/drone-survey")
	await(t, ctx, "live", isLive)
	still.Lock()
	begun := time.Now()
	func() {
		defer still.Unlock()
		await(t, ctx, "the word that it stands still", `document.getElementById("notice").innerText.startsWith("The server does not answer.") && !(`+isLive+`)`)
	}()
	if took := time.Since(begun); took > 25*time.Second { // 12.5 s, on a machine that may be busy
		t.Errorf("the page said it after %v", took)
	}
	await(t, ctx, "the recovery", isLive+` && document.getElementById("notice").innerText === ""`)
}

// When an entity is deleted while its page is open, the page says so.
func TestPageOfADeletedWorkerSaysSo(t *testing.T) {
	h := newHosted()
	base, _ := serve(t, operator.Config{Workers: h})
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workers/notify")
	await(t, ctx, "live", isLive)
	h.Delete(t.Context(), "notify", "ada")
	await(t, ctx, "the notice that it is gone", `document.getElementById("notice").innerText.includes("no longer exists") && document.querySelector("h1").innerText === "notify"`)
}

// With 10 000 entities, 1000 watchers and constant changes, the page shows a part,
// stays usable while it updates, and neither the server nor the page grows with
// the number of entities or of changes.
func TestTenThousandEntitiesOnScreen(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 10 000 entities and many watchers")
	}
	const entities, watchers = 10_000, watchersOfScreen
	m := newMemory(entities)
	base, _ := serve(t, operator.Config{Workflows: m, Rate: 1e6})
	client := h2c(t)
	watching, stop := context.WithCancel(t.Context())
	var all, synced sync.WaitGroup
	defer all.Wait()
	defer stop()
	var told atomic.Int64
	synced.Add(watchers)
	for range watchers {
		all.Go(func() {
			done := sync.OnceFunc(synced.Done)
			defer done()
			c := operatorv1connect.NewWorkflowServiceClient(client, base, connect.WithGRPC())
			// One entity each, so that the test measures the server and not itself.
			watch, err := c.Watch(watching, &operatorv1.WatchRequest{Type: "drone-survey", Id: "m-00007"})
			if err != nil {
				return
			}
			defer watch.Close()
			for watch.Receive() {
				if watch.Msg().GetKind() == operatorv1.WatchResponse_KIND_SYNCED {
					done()
				} else if watch.Msg().GetKind() == operatorv1.WatchResponse_KIND_PUT {
					told.Add(1)
				}
			}
		})
	}
	synced.Wait()
	heap := func() uint64 {
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		return mem.HeapInuse
	}
	before := heap()
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "live", isLive)
	size := func() (nodes int, bytes float64) {
		if _, err := chromedp.Call(ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
			t.Fatal(err)
		}
		usage, err := chromedp.Call(ctx, cdpruntime.GetHeapUsage, cdp.Empty{})
		if err != nil {
			t.Fatal(err)
		}
		return evaluate[int](t, ctx, `document.querySelectorAll("*").length`), usage.UsedSize
	}
	nodes, _ := size()
	if rows := evaluate[int](t, ctx, `document.querySelectorAll("#entities tbody tr").length`); rows != 50 || nodes > 2000 {
		t.Errorf("%d rows and %d elements for %d entities", rows, nodes, entities)
	}
	// Change entities on and off the screen, until the end.
	all.Go(func() {
		for i := 0; ; i++ {
			m.mu.Lock()
			ids := []string{fmt.Sprintf("m-%05d", i%entities), fmt.Sprintf("m-%05d", i%7)}
			if i%5 == 0 { // the entity that all others watch
				ids = append(ids, "m-00007")
			}
			for _, id := range ids {
				e, _ := m.getLocked(id, 0)
				e.Phase = missionPhases[i%len(missionPhases)].GetName()
				m.putLocked(e, e.GetPhase(), "", "")
			}
			clear(m.history)
			m.mu.Unlock()
			select {
			case <-watching.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	// A frozen page runs no timer between its updates.
	// Two may coincide: an update, and the clock beside it.
	evaluate[any](t, ctx, `(() => {
		window.changes = 0; window.frozen = 0;
		let streak = 0;
		setInterval(() => { streak = 0; }, 10);
		new MutationObserver(() => { changes++; if (++streak > 2) frozen++; }).observe(document.getElementById("content"), {subtree: true, childList: true, characterData: true});
	})(), null`)
	await(t, ctx, "changes", `changes >= 10`)
	// Type a filter while rows change.
	evaluate[any](t, ctx, `document.querySelector("[name=contains]").focus(), null`)
	seen := evaluate[int](t, ctx, `changes`)
	for _, key := range "m-0999" {
		press(t, ctx, string(key))
	}
	await(t, ctx, "changes under the typing", fmt.Sprintf(`changes >= %d`, seen+4))
	if n := evaluate[int](t, ctx, `frozen`); n > 0 {
		t.Errorf("the page changed %d times without a pause in between", n)
	}
	if text := evaluate[string](t, ctx, `document.activeElement.name + "=" + document.activeElement.value`); text != "contains=m-0999" {
		t.Errorf("the filter has the text %q", text)
	}
	press(t, ctx, kb.Enter)
	await(t, ctx, "the filtered list", `document.querySelectorAll("#entities tbody tr").length === 10 && document.querySelector("#entities tbody tr").dataset.key === "m-09990"`)
	// There are more pages; TestPagesAreCompleteAndDoNotRepeat reads all.
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	evaluate[any](t, ctx, `[...document.querySelectorAll(".pager a")].find(a => a.textContent === "Next page").click(), null`)
	await(t, ctx, "the next page", `document.querySelector("#entities tbody tr")?.dataset.key === "m-00050"`)
	visit(t, ctx, base+"/ui/workflows/drone-survey?size=1000&contains=m-00")
	await(t, ctx, "a long page", `document.querySelectorAll("#entities tbody tr").length === 1000 && !document.querySelector(".pager")`)
	// A page may have 1000 changing rows.
	seen = evaluate[int](t, ctx, `(window.changes = 0, new MutationObserver(() => changes++).observe(document.getElementById("content"), {subtree: true, childList: true, characterData: true}), 0)`)
	await(t, ctx, "changes of a long page", fmt.Sprintf("changes >= %d", seen+3))

	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "live", isLive)
	nodes, bytes := size()
	if nodes > 2000 || bytes > 64<<20 {
		t.Errorf("the page has grown to %d elements and %.0f MiB", nodes, bytes/(1<<20))
	}
	// Client and server share this process: sockets, buffers and goroutines of
	// both, for each watcher, and the entities once.
	after := heap()
	if before > 512<<20 || after > before+128<<20 {
		t.Errorf("the heap has grown from %d MiB to %d MiB", before>>20, after>>20)
	}
	if told.Load() < watchers {
		t.Errorf("%d changes were sent to %d watchers", told.Load(), watchers)
	}
	t.Logf("heap in use %d MiB before and %d MiB after the changes, with %d watchers, client and server; page: %d elements, %.1f MiB", before>>20, after>>20, watchers, nodes, bytes/(1<<20))
}

// A browser with many windows of the server holds a connection only for
// the visible ones: it has six for one server.
func TestHiddenPageHoldsNoConnection(t *testing.T) {
	m := newMemory(1)
	base, _ := serve(t, operator.Config{Workflows: m})
	ctx := browser(t)
	visit(t, ctx, base+"/ui/workflows/drone-survey")
	await(t, ctx, "live", isLive)
	evaluate[any](t, ctx, `(Object.defineProperty(document, "hidden", {value: true, configurable: true}), document.dispatchEvent(new Event("visibilitychange")), null)`)
	m.add("m-unseen", mission{})
	evaluate[any](t, ctx, `(delete document.hidden, document.dispatchEvent(new Event("visibilitychange")), null)`)
	await(t, ctx, "what happened meanwhile", `document.querySelector("[data-key=m-unseen]")`)
	m.add("m-seen", mission{})
	await(t, ctx, "what happens now", `document.querySelector("[data-key=m-seen]")`)
}
