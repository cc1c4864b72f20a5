//go:build linux

package operator_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestFleetAtScale measures an operator server with a large fleet: SCALE=20x500 are 20
// operating-system processes with 500 announced processes each, SCALE_ENTITIES is the
// number of entities, 100000 by default, and SCALE_PAGES is the number of open pages, 50
// by default. Without SCALE all of it is small. SCALE_PROFILE names a file for the CPU
// profile of the server. Two more profiles are written beside it: NAME.heap is the server's
// memory with open pages, and NAME.announcers the CPU of one group of processes. SCALE_TTL is
// the TTL of announcements: with a long one a busy machine can have many. SCALE_MEMORY is the
// soft limit of the server's memory, such as 360MiB. The test asserts
// nothing about times: it prints the figures of docs/reference/scale.md. NATS, the server and
// the announced processes each have a process of their own.
func TestFleetAtScale(t *testing.T) {
	if testing.Short() {
		t.Skip("TestWatchersGetOnlyNews is the short version")
	}
	hosts, each, entities, watchers := 2, 10, 1000, 50
	window, steps := time.Second, 2
	if text := os.Getenv("SCALE"); text != "" {
		if _, err := fmt.Sscanf(text, "%dx%d", &hosts, &each); err != nil {
			t.Fatalf("SCALE is %q, want HOSTSxPROCESSES", text)
		}
		entities, window, steps = 100_000, 30*time.Second, 100
	}
	if n, err := strconv.Atoi(os.Getenv("SCALE_PAGES")); err == nil {
		watchers = n
	}
	if n, err := strconv.Atoi(os.Getenv("SCALE_ENTITIES")); err == nil {
		entities = n
	}
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0", Sync: broker.SyncInterval, Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")}})
	mgr := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	defer mgr.Close()
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys); err != nil {
		t.Fatal(err)
	}
	phases := []string{"planning", "flying", "capturing", "landing", "completed"}
	var made sync.WaitGroup
	var next atomic.Int64
	for range 32 {
		made.Go(func() {
			for i := next.Add(1); i <= int64(entities); i = next.Add(1) {
				if err := mgr.Create(t.Context(), &survey{ID: fmt.Sprintf("m-%06d", i), State: phases[i%5], Org: "acme"}); err != nil {
					t.Errorf("create: %v", err)
					return
				}
			}
		})
	}
	made.Wait()
	t.Logf("made %d entities", entities)

	server, base := scaleChild(t, "server", b.ClientURL(), 0, "GOMEMLIMIT="+cmp.Or(os.Getenv("SCALE_MEMORY"), "off"))
	for i := range hosts {
		scaleChild(t, "announcers", b.ClientURL(), each, fmt.Sprint("SCALE_HOST=", i))
	}
	all := hosts * each
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2000}}
	defer client.CloseIdleConnections()
	sent := 0 // bytes of the last answer, as a browser gets it
	get := func(path string) (text string, took time.Duration) {
		t.Helper()
		begun := time.Now()
		req, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", "gzip")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		took, sent = time.Since(begun), len(body)
		if err == nil && resp.Header.Get("Content-Encoding") == "gzip" {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
				body, err = io.ReadAll(z)
			}
		}
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v %.500s", path, resp.StatusCode, err, body)
		}
		return string(body), took
	}
	var page struct {
		Totals    struct{ All, Ready string }
		Processes []struct{ ID string }
	}
	for begun := time.Now(); page.Totals.Ready != fmt.Sprint(all); time.Sleep(time.Second) {
		text, _ := get("/processes?page_size=1")
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatal(err)
		}
		if time.Since(begun) > 10*time.Minute {
			t.Fatalf("after ten minutes %s of %d processes are ready", page.Totals.Ready, all)
		}
	}
	time.Sleep(window) // until what a start costs is over
	atRest := func(what string) {
		before := cpuTime(t, server)
		time.Sleep(window)
		used := cpuTime(t, server) - before
		t.Logf("%s: the server uses %.1f %% of a processor, %.0f µs for each process and second; its memory is %d MiB, at most %d",
			what, 100*used.Seconds()/window.Seconds(), float64(used.Microseconds())/window.Seconds()/float64(all), resident(t, server, "VmRSS:")>>20, resident(t, server, "VmHWM:")>>20)
	}
	atRest("at rest")
	pages := []string{"/ui/", "/ui/?sort=service", "/ui/?contains=svc-7", "/ui/events", "/ui/workflows", "/ui/workflows/drone-survey", "/ui/workflows/drone-survey?phase=landing", "/processes", "/diagnosis"}
	look := func() {
		for _, path := range pages {
			var times []time.Duration
			size := 0
			for range 20 {
				text, took := get(path)
				times, size = append(times, took), len(text)
			}
			t.Logf("%s: %s, %.1f kB, of which %.1f kB are sent", path, spread(times), float64(size)/1000, float64(sent)/1000)
		}
	}
	look()

	ctx, cancel := context.WithCancel(t.Context())
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	for i := range watchers {
		open.Go(func() {
			pause := time.Duration(i) * 3 * time.Second / time.Duration(watchers)
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(pause):
				}
				pause = 3 * time.Second // as live.js
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, base+"/ui/", nil)
				resp, err := client.Do(req)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	atRest(fmt.Sprintf("with %d open pages", watchers))
	if os.Getenv("SCALE_PROFILE") != "" {
		if err := syscall.Kill(server, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
	}
	var answered, onScreen []time.Duration
	for i := range steps {
		text, _ := get(fmt.Sprintf("/processes?page_size=%d&contains=svc-%d.", i/40+1, i%40))
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			t.Fatal(err)
		}
		id := page.Processes[i/40].ID
		begun := time.Now()
		resp, err := client.Post(base+"/processes/"+id+"/suspend", "application/json", strings.NewReader(`{"reason":"new disk"}`))
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("suspend: %v %v", resp, err)
		}
		resp.Body.Close()
		answered = append(answered, time.Since(begun))
		for shown := ""; !strings.Contains(shown, "wait\">suspended"); {
			shown, _ = get("/ui/?contains=" + id)
		}
		onScreen = append(onScreen, time.Since(begun))
		time.Sleep(window / 100)
	}
	t.Logf("from a command to its answer: %s; to the changed row in a page: %s", spread(answered), spread(onScreen))
	moved := make([]time.Duration, 0, steps)
	for i := range steps {
		id := fmt.Sprintf("m-%06d", 5*(i+1))
		begun := time.Now()
		if err := mgr.Transition(t.Context(), "drone-survey", id, "flying", workflow.TransitionSourceComponent, ""); err != nil {
			t.Fatal(err)
		}
		for shown := ""; !strings.Contains(shown, `"flying"`) && !strings.Contains(shown, "flying</span>"); {
			shown, _ = get("/ui/workflows/drone-survey?contains=" + id)
		}
		moved = append(moved, time.Since(begun))
	}
	t.Logf("from a transition to the changed row in a page: %s", spread(moved))
	look()
	atRest("after all of it")
}

// spread describes times.
func spread(list []time.Duration) string {
	list = slices.Clone(list)
	slices.Sort(list)
	at := func(percent int) time.Duration { return list[(len(list)-1)*percent/100].Round(100 * time.Microsecond) }
	return fmt.Sprintf("of %d the median is %v, 99 %% are within %v, all within %v", len(list), at(50), at(99), at(100))
}

// scaleChild starts this program in another role. It ends with the test.
func scaleChild(t *testing.T, role, nats string, n int, env ...string) (pid int, line string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "SCALE_ROLE="+role, "SCALE_NATS="+nats, fmt.Sprint("SCALE_N=", n))...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		stop := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		stop.Stop()
	})
	line, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", role, err)
	}
	return cmd.Process.Pid, strings.TrimSpace(line)
}

// scaleMain is the program of a child of TestFleetAtScale.
func scaleMain() {
	role := os.Getenv("SCALE_ROLE")
	if role == "" {
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("SCALE_TTL"), "0s"))
	fail(err)
	b, err := broker.Connect(ctx, broker.Config{URL: os.Getenv("SCALE_NATS"), Logger: quiet})
	fail(err)
	n, err := strconv.Atoi(os.Getenv("SCALE_N"))
	fail(err)
	switch role {
	case "server":
		mgr := workflow.NewManager(b.JetStream(), quiet)
		fail(mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys))
		f, err := presence.Open(ctx, b.JetStream(), presence.Config{TTL: ttl})
		fail(err)
		if file := os.Getenv("SCALE_PROFILE"); file != "" {
			f, err := os.Create(file)
			fail(err)
			fail(pprof.StartCPUProfile(f))
			asked := make(chan os.Signal, 1)
			signal.Notify(asked, syscall.SIGUSR1)
			go func() {
				<-asked
				f, err := os.Create(file + ".heap")
				fail(err)
				runtime.GC()
				fail(pprof.WriteHeapProfile(f))
				fail(f.Close())
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				fmt.Fprintf(os.Stderr, "the server's memory in MiB: %d live, %d of the heap in use, %d free and %d returned, %d of stacks; %d goroutines, %d collections\n",
					m.HeapAlloc>>20, m.HeapInuse>>20, m.HeapIdle>>20, m.HeapReleased>>20, m.StackInuse>>20, runtime.NumGoroutine(), m.NumGC)
			}()
		}
		s, err := operator.New(operator.Config{Workflows: operator.FromManager(mgr), Processes: operator.FromPresence(f), Rate: 1e6, Logger: quiet})
		fail(err)
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		fail(err)
		go func() { fail(s.HTTPServer().Serve(ln)) }()
		fmt.Println("http://" + ln.Addr().String())
	case "announcers":
		host, err := strconv.Atoi(os.Getenv("SCALE_HOST"))
		fail(err)
		if file := os.Getenv("SCALE_PROFILE"); file != "" && host == 0 {
			f, err := os.Create(file + ".announcers")
			fail(err)
			fail(pprof.StartCPUProfile(f))
		}
		for i := range n {
			app, err := lifecycle.New(lifecycle.Config{Name: fmt.Sprintf("svc-%d", (host*n+i)%40), HealthAddr: lifecycle.HealthOff}, lifecycle.WithLogger(quiet))
			fail(err)
			presence.Announce(app, b.JetStream(), presence.Config{Version: "1.2.3", TTL: ttl, Logger: quiet})
			for _, name := range []string{"http", "poller", "sync"} {
				app.Go(name, func(ctx context.Context) error { <-ctx.Done(); return nil })
			}
			app.Probe("db", lifecycle.ProbeFunc(func(context.Context) error { return nil }))
			go func() { fail(app.Run(ctx)) }()
			time.Sleep(10 * time.Millisecond) // a fleet does not start at once
			if i == 0 {
				fmt.Println("begun")
			}
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	pprof.StopCPUProfile()
	os.Exit(0)
}

// cpuTime returns the processor time of a process (proc(5), stat, fields 14 and 15, in
// hundredths of a second).
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// resident returns a size of a process's memory, in bytes.
func resident(t *testing.T, pid int, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	return 0
}
