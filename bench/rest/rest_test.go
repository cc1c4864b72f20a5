//go:build linux

package rest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// programs are the measured services. net-http-tls may serve TLS, as App.Serve may.
var programs = []struct{ peer, folder, tags string }{
	{"net-http", "plain", ""},
	{"net-http-tls", "plain", "servetls"},
	{"lifecycle-go", "lifecycle", ""},
}

// BenchmarkRest reports for each program the bytes of the stripped binary, the time
// from exec until its log says that it runs, and of a process that has answered one
// request on each of its addresses and then has nothing to do: the resident memory, all
// of it and the part that belongs to no file, the context switches of all threads in
// a second, and the goroutines that are not the runtime's.
func BenchmarkRest(b *testing.B) {
	for _, p := range programs {
		b.Run("peer="+p.peer, func(b *testing.B) {
			binary := build(b, p.folder, p.tags)
			var ready []float64
			for b.Loop() {
				s := start(b, binary)
				ready = append(ready, float64(s.ready))
				s.end(b, syscall.SIGKILL)
			}
			slices.Sort(ready)
			b.ReportMetric(ready[len(ready)/2], "ready-ns")
			info, err := os.Stat(binary)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(info.Size()), "binary-B")
			atRest(b, binary)
		})
	}
}

func atRest(b *testing.B, binary string) {
	b.Helper()
	s := start(b, binary)
	for _, addr := range s.addrs {
		resp, err := http.Get("http://" + addr + "/livez")
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	// The health server's timeouts, 10 s at most, run out after a request that was
	// answered: a timer that was stopped may still wake the runtime once.
	settle, watch := 12*time.Second, 10*time.Second
	if testing.Short() {
		settle, watch = 100*time.Millisecond, 100*time.Millisecond
	}
	time.Sleep(settle)
	before := s.switches(b)
	time.Sleep(watch)
	b.ReportMetric((s.switches(b)-before)/watch.Seconds(), "wakeups/s")
	b.ReportMetric(1024*s.status(b, "status", "VmRSS"), "rss-B")
	b.ReportMetric(1024*s.status(b, "status", "RssAnon"), "anon-B")
	dump := s.end(b, syscall.SIGQUIT)
	// Every goroutine but the first was created by a function, which the dump names.
	all := len(regexp.MustCompile(`(?m)^created by `).FindAllString(dump, -1))
	runtimes := len(regexp.MustCompile(`(?m)^created by runtime\.`).FindAllString(dump, -1))
	b.ReportMetric(float64(1+all-runtimes), "goroutines")
}

// build makes a stripped binary.
func build(b *testing.B, folder, tags string) string {
	b.Helper()
	binary := filepath.Join(b.TempDir(), folder)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-tags="+tags, "-o", binary, "./testdata/"+folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return binary
}

// service is a program that runs.
type service struct {
	cmd   *exec.Cmd
	ready time.Duration
	addrs []string
	log   *bytes.Buffer // what it wrote
	ended chan struct{} // closed when log is complete
}

var address = regexp.MustCompile(`addr=(\S+)`)

// start returns when the program's log says that it runs.
func start(b *testing.B, binary string) *service {
	b.Helper()
	s := &service{cmd: exec.Command(binary), log: new(bytes.Buffer), ended: make(chan struct{})}
	s.cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	pipe, err := s.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			b.Fatalf("%s does not run: %v", binary, err)
		}
		if m := address.FindStringSubmatch(line); m != nil {
			s.addrs = append(s.addrs, m[1])
		}
		if strings.Contains(line, "INFO running") {
			break
		}
	}
	s.ready = time.Since(began)
	go func() {
		defer close(s.ended)
		_, _ = lines.WriteTo(s.log)
	}()
	return s
}

// end sends the signal and returns what the program wrote since it runs.
func (s *service) end(b *testing.B, sig syscall.Signal) string {
	b.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		b.Fatal(err)
	}
	<-s.ended
	_ = s.cmd.Wait() // the signal has ended it
	return s.log.String()
}

// switches returns the context switches of all threads.
func (s *service) switches(b *testing.B) (sum float64) {
	b.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		b.Fatalf("threads %v, %v", threads, err)
	}
	for _, thread := range threads {
		file := filepath.Join("task", filepath.Base(thread), "status")
		sum += s.status(b, file, "voluntary_ctxt_switches") + s.status(b, file, "nonvoluntary_ctxt_switches")
	}
	return sum
}

// status returns a number of a file in the process's folder of /proc.
func (s *service) status(b *testing.B, file, key string) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, file))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatalf("%s has no %s", file, key)
	return 0
}
