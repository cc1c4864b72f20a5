package operator_test

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browser starts Chromium. A message on a page's console, or a request to
// another server, fails the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if path, err = exec.LookPath("google-chrome"); err != nil {
			t.Skip("no chromium and no google-chrome on this machine: the dashboard is tested in a real browser only")
		}
	}
	// Not t.TempDir: a browser's processes write for a moment after it has ended.
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(30 * time.Second); os.RemoveAll(dir) != nil && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
	})
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.UserDataDir(dir),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(alloc)
	ctx, timeout := context.WithTimeout(ctx, 9*time.Minute)
	t.Cleanup(func() { timeout(); chromedp.Cancel(ctx); cancel(); stop() })
	if _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatalf("chromium does not start: %v", err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
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
	err = chromedp.Listen(ctx, func(ev any) {
		switch ev := ev.(type) {
		case *log.EventEntryAdded:
			// Violations of the page's policy come from security: there should be none.
			if ev.Entry.Source == log.EntrySourceSecurity || ev.Entry.Source == log.EntrySourceJavascript {
				complain("the browser says: %s (%s)", ev.Entry.Text, ev.Entry.URL)
			}
		case *runtime.EventExceptionThrown:
			complain("a script fails: %s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception)
		case *page.EventJavascriptDialogOpening:
			complain("a dialog opens: %s", ev.Message)
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(ev.Request.URL); err == nil && u.Scheme != "data" && u.Hostname() != "127.0.0.1" && u.Hostname() != "localhost" && u.Scheme != "chrome" {
				complain("the page asks %s", ev.Request.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return ctx
}

// visit opens a page.
func visit(t *testing.T, ctx context.Context, url string) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.Navigate(url), chromedp.WaitReady("main")); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
}

// await waits until a script returns true.
func await(t *testing.T, ctx context.Context, what, script string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		// Between two pages the script cannot be evaluated.
		if is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")")); err == nil && is {
			return
		}
		if time.Now().After(end) {
			body, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
			t.Fatalf("%s does not appear:\n%s", what, body)
		}
	}
}

const isLive = `document.getElementById("live")?.dataset.state === "on"`

// tabTo presses Tab until the element with that text or name has the focus.
func tabTo(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	for range 80 {
		press(t, ctx, kb.Tab)
		if evaluate[string](t, ctx, `document.activeElement.textContent.trim() || document.activeElement.name || ""`) == want {
			return
		}
	}
	t.Fatalf("the Tab key does not reach %q", want)
}

func press(t *testing.T, ctx context.Context, keys string) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.KeyEvent(keys)); err != nil {
		t.Fatal(err)
	}
}

func evaluate[T any](t *testing.T, ctx context.Context, script string) (value T) {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return value
}

// accessible runs axe in the page and fails for every finding.
func accessible(t *testing.T, ctx context.Context, axe, what string) {
	t.Helper()
	evaluate[int](t, ctx, axe+"\n;0") // the page's policy forbids foreign scripts; the debugger may still run one
	found, err := chromedp.Run(ctx,
		chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations.map(v => v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map(n => n.html).join(" | "))))`,
			chromedp.EvalAwaitPromise))
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

// click clicks on an element. When the page is drawn anew between the search for the element
// and the click, it looks for the element again.
func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	for {
		err := chromedp.Do(ctx, chromedp.Click(selector))
		if err == nil {
			return
		}
		if ctx.Err() != nil || !strings.Contains(err.Error(), "Could not find node") {
			t.Fatalf("%s: %v", selector, err)
		}
	}
}
