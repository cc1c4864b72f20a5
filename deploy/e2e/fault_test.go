package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEndlessStreams is R15: streams that observe the drain say goodbye, those that
// ignore it are cut at the window's end. Either way the process exits 0, and
// its hooks have run.
func TestEndlessStreams(t *testing.T) {
	full(t)
	c := onCluster(t)
	type stream = func(ctx context.Context, addr string) (goodbye bool, err error)
	for name, tt := range map[string]struct {
		deployment
		streams map[string]stream
		goodbye bool
		hook    string
	}{
		"told": {c.serviceOf("told", 1), map[string]stream{
			"events": func(ctx context.Context, addr string) (bool, error) { return readEvents(ctx, "http://"+addr+"/events") },
			"socket": func(ctx context.Context, addr string) (bool, error) { return readSocket(ctx, "ws://"+addr+"/socket") },
		}, true, "db"},
		"deaf": {deployment{name: "deaf", image: c.app}, map[string]stream{
			"events": func(ctx context.Context, addr string) (bool, error) {
				return readEvents(ctx, "http://"+addr+"/endless")
			},
			"hijacked": func(_ context.Context, addr string) (bool, error) { return false, readHijacked(addr) },
		}, false, "last"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := c.deploy(t, tt.deployment).ready(t)
			one := d.pods.only(t)
			type result struct {
				name    string
				goodbye bool
				err     error
				at      time.Time
			}
			results := make(chan result, len(tt.streams))
			for name, read := range tt.streams {
				go func() {
					goodbye, err := read(context.Background(), d.addr)
					results <- result{name, goodbye, err, time.Now()}
				}()
			}
			pause(t.Context(), 2*time.Second)
			if len(results) > 0 {
				t.Fatalf("a stream ended before the stop: %+v", <-results)
			}
			d.stopPod(t, one, -1)
			e := d.pods.ended(t, one.uid)
			t0 := at(t, d.pods.log.await(t, one.uid, "stopping"))
			for range tt.streams {
				r := <-results
				t.Logf("%s ended at T0+%v, goodbye %v, %v", r.name, r.at.Sub(t0).Round(time.Millisecond), r.goodbye, r.err)
				if r.goodbye != tt.goodbye {
					t.Errorf("%s: goodbye is %v, want %v", r.name, r.goodbye, tt.goodbye)
				}
				if early := 5*time.Second - r.at.Sub(t0); !tt.goodbye && early > 0 {
					t.Errorf("%s was cut %v before the window's end", r.name, early)
				}
			}
			if e.ExitCode != 0 {
				t.Errorf("%s; want 0", e)
			}
			if done := d.pods.log.await(t, one.uid, "shutdown hook done"); !hookRan(d, one.uid, tt.hook) {
				t.Errorf("the hook %s did not run: %v", tt.hook, done)
			}
		})
	}
}

func hookRan(d *deployed, uid, name string) bool {
	for _, record := range d.pods.log.said(uid, "shutdown hook done") {
		if record["hook"] == name {
			return true
		}
	}
	return false
}

// readHijacked reads from a connection that is no longer HTTP until it ends.
func readHijacked(addr string) error {
	conn, err := dialRaw(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET /hijacked HTTP/1.1\r\nHost: e2e\r\nConnection: Upgrade\r\nUpgrade: e2e\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// TestStuck is R17 to R19 and R21: a unit or hook that does not return is abandoned by name,
// with its own exit status, before the kubelet has to kill. When the
// grace is too short for that, the termination log says how far it got.
func TestStuck(t *testing.T) {
	full(t)
	c := onCluster(t)
	for _, tt := range []struct {
		how   string
		grace int // -1: the pod's
		code  int
		says  []string
	}{
		{"stuck-unit", -1, 70, []string{"failed", "unit faulty", "did not return"}},
		{"stuck-hook", -1, 70, []string{"failed", "hook faulty", "did not return"}},
		// Killed while it waits for the culprit.
		{"stuck-unit", 9, 137, []string{"stopping: received signal: terminated", "waiting for unit faulty"}},
		{"stuck-hook", 9, 137, []string{"stopping: received signal: terminated", "waiting for hook faulty"}},
		// Killed in the drain window, when nothing is known to be stuck yet. The
		// kubelet gives two seconds at least (minimumGracePeriodInSeconds).
		{"stuck-unit", 1, 137, []string{"draining: received signal: terminated"}},
	} {
		t.Run(fmt.Sprintf("%s/grace=%d", tt.how, tt.grace), func(t *testing.T) {
			t.Parallel()
			d := c.deploy(t, c.serviceOf(fmt.Sprintf("%s-%d", tt.how, tt.grace+1), 1)).ready(t)
			one := d.pods.only(t)
			tell(t, d.addr, "/fail?how="+tt.how, 202)
			d.stopPod(t, one, tt.grace)
			e := d.pods.ended(t, one.uid)
			t.Log(e)
			if e.ExitCode != tt.code {
				t.Errorf("exit status %d, want %d", e.ExitCode, tt.code)
			}
			for _, s := range tt.says {
				if !strings.Contains(e.Message, s) {
					t.Errorf("the last words are %q, and do not say %q", e.Message, s)
				}
			}
		})
	}
}

// TestBlackBoxOnTheCluster is R60: a unit that hangs in a stop leaves an execution trace that the
// tool for traces opens and that names the unit. It is there when the container runs again.
func TestBlackBoxOnTheCluster(t *testing.T) {
	full(t)
	t.Parallel()
	c := onCluster(t)
	s := c.serviceOf("blackbox", 1)
	s.env["SERVICE_LIFECYCLE_BLACK_BOX_DIR"] = "/tmp/boxes"
	d := c.deploy(t, s).ready(t)
	one := d.pods.only(t)
	tell(t, d.addr, "/fail?how=stuck-unit", 202)
	d.signal(t, d.process(t, one), "SIGTERM") // a pod that Kubernetes stops takes its volumes with it
	if e := d.pods.ended(t, one.uid); e.ExitCode != 70 {
		t.Errorf("%s; want 70", e)
	}
	d.pods.await(t, "the container to run again", func([]*pod) bool {
		now := d.pods.running()
		return len(now) == 1 && now[0].container != one.container
	})
	box := boxOf(t, d.process(t, d.pods.only(t)))
	for file, says := range map[string]string{
		"why.json":       "unit faulty was abandoned",
		"goroutines.txt": `"lifecycle.name":"faulty`,
	} {
		if text, err := os.ReadFile(filepath.Join(box, file)); err != nil || !strings.Contains(string(text), says) {
			t.Errorf("%s does not say %q: %v\n%.2000s", file, says, err, text)
		}
	}
	events, err := exec.Command("go", "tool", "trace", "-d=parsed", filepath.Join(box, "trace.out")).CombinedOutput()
	if err != nil || !strings.Contains(string(events), "unit faulty was abandoned") {
		t.Errorf("go tool trace: %v\n%.2000s", err, events)
	}
}

// boxOf returns the black box of the process's container, seen from the node.
func boxOf(t *testing.T, p process) string {
	t.Helper()
	boxes, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/tmp/boxes/blackbox-*", p.pid))
	if err != nil || len(boxes) != 1 {
		t.Fatalf("the boxes are %q, want one: %v", boxes, err)
	}
	return boxes[0]
}

// TestOutOfMemory is R21 when the process cannot act: it is killed, and the
// last line that it wrote has the cause.
func TestOutOfMemory(t *testing.T) {
	full(t)
	t.Parallel()
	c := onCluster(t)
	d := c.deploy(t, deployment{name: "oom", image: c.app, memory: "64Mi"}).ready(t)
	one := d.pods.only(t)
	conn, err := dialRaw(d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if a := conn.post("/oom"); a.err == nil {
		t.Errorf("it answered %d: it did not run out of memory", a.status)
	}
	e := d.pods.ended(t, one.uid)
	t.Log(e)
	if e.ExitCode != 137 || e.Reason != "OOMKilled" || e.Message != "app: running" {
		t.Errorf("%s; want 137, OOMKilled, and the phase", e)
	}
	d.pods.await(t, "the container to run again", func([]*pod) bool { return len(d.pods.running()) == 1 })
}

// TestFailingReadiness is R12 and R23: a pod that cannot serve gets no requests from
// the Service and is not restarted by the kubelet, and recovers.
func TestFailingReadiness(t *testing.T) {
	full(t)
	t.Parallel()
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("unready", 1)).ready(t)
	one := d.pods.only(t)
	slices := d.watchEndpoints(t, d.name, nil)
	eventually(t, "the endpoint to be ready", func() bool { return slices.isReady(one.uid) })
	way := d.wayTo(t, one)
	tell(t, way, "/fail?how=unready", 202)
	slices.unreadySince(t, one.uid)
	tell(t, way, "/work?note=e2e", 201) // it works as before
	tell(t, way, "/fail?how=unready", 202)
	eventually(t, "the endpoint to be ready again", func() bool { return slices.isReady(one.uid) })
	awaitAnswer(t, d.addr)
	if all := d.pods.list(); len(all) != 1 || len(all[0].ends) != 0 {
		t.Errorf("it was restarted or replaced: %s", d.pods)
	}
}

// TestStuckStart is R1, R12 and R17: an App that does not finish its start is never
// ready. The startup probe fails at last, and the signal ends the start.
func TestStuckStart(t *testing.T) {
	full(t)
	c := onCluster(t)
	for never, want := range map[string]struct {
		code int
		says []string
	}{
		"start":  {0, []string{"stopped: received signal: terminated", "waiting for unit slow to start"}},
		"return": {70, []string{"unit slow", "did not return"}},
	} {
		t.Run(never, func(t *testing.T) {
			t.Parallel()
			d := c.deploy(t, deployment{name: "never-" + never, image: c.app, args: []string{"-never=" + never}, startups: 5})
			all := d.pods.await(t, "a pod", func(all []*pod) bool { return len(all) == 1 })
			e := d.pods.ended(t, all[0].uid)
			t.Log(e)
			if e.ExitCode != want.code {
				t.Errorf("exit status %d, want %d", e.ExitCode, want.code)
			}
			for _, s := range want.says {
				if !strings.Contains(e.Message, s) {
					t.Errorf("the last words are %q, and do not say %q", e.Message, s)
				}
			}
			if d.pods.list()[0].ready {
				t.Error("it was ready")
			}
		})
	}
}
