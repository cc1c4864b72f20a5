package worker_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
	"go.uber.org/goleak"
)

// The tests run real processes: this test binary, started again as a helper.
const helperEnv = "WORKER_TEST_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperEnv); mode != "" {
		helper(mode)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// helperCommand returns a command that runs helper(mode). Output goes to out,
// which may be nil.
func helperCommand(mode string, out *lines) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), helperEnv+"="+mode, "GORACE=atexit_sleep_ms=0") // otherwise the race detector sleeps for a second
	if out != nil {
		cmd.Stdout = out
	}
	return cmd
}

func helper(mode string) {
	mode, arg, _ := strings.Cut(mode, ":")
	switch mode {
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "sleep":
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "ignore": // ignores every signal that can be ignored
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "polite": // ends with a code of its own when asked
		code, _ := strconv.Atoi(arg)
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		fmt.Println("ready")
		<-asked
		os.Exit(code)
	case "late": // a grandchild that takes its time and then says that it is done
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		fmt.Println("grandchild", os.Getpid())
		<-asked
		time.Sleep(200 * time.Millisecond)
		fmt.Println("flushed")
	case "fork", "parent": // has a child of its own; fork does not stay
		child := helperCommand(arg, nil)
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", child.Process.Pid)
		if mode == "fork" {
			time.Sleep(100 * time.Millisecond) // gives the child time to install its handler
			return
		}
		time.Sleep(time.Hour)
	case "flood":
		block := bytes.Repeat([]byte("x"), 1<<20)
		for range 1 << 8 {
			os.Stdout.Write(block)
		}
	case "closeout":
		fmt.Println("ready")
		os.Stdout.Close()
		os.Stderr.Close()
		time.Sleep(time.Hour)
	case "handover": // the first instance exits with 5, and the second gets that exit
		h, ok, err := worker.HandoverFromEnv()
		switch {
		case !ok || err != nil || h.Session == "":
			fmt.Println("nothing handed over", err)
		case h.Previous == nil:
			os.Exit(5)
		default:
			fmt.Printf("second: previous exit %d, restarts %d\n", h.Previous.Code, h.Restarts)
		}
		time.Sleep(time.Hour)
	case "panics": // in a child of the kind in arg, and outlives that when it is caught
		panicsIn(arg)
		fmt.Println("goes on")
	case "tick":
		for i := range 1 << 20 {
			fmt.Println("tick", i)
			time.Sleep(time.Millisecond)
		}
	case "environ":
		for _, v := range os.Environ() {
			fmt.Println(v)
		}
	default:
		if !helperUnix(mode, arg) && !helperLinux(mode, arg) {
			panic("no such helper: " + mode)
		}
	}
}

// lines collects a process's output and lets tests wait for a line.
type lines struct {
	mu   sync.Mutex
	got  bytes.Buffer
	more chan struct{}
}

func newLines() *lines { return &lines{more: make(chan struct{}, 1)} }

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got.Write(b)
	select {
	case l.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got.String()
}

// await returns the rest after prefix of the first line that begins with it.
func (l *lines) await(t testing.TB, prefix string) string {
	t.Helper()
	end := time.NewTimer(time.Minute)
	defer end.Stop()
	for {
		scan := bufio.NewScanner(strings.NewReader(l.String()))
		for scan.Scan() {
			if rest, ok := strings.CutPrefix(scan.Text(), prefix); ok && strings.HasSuffix(l.String(), "\n") {
				return strings.TrimSpace(rest)
			}
		}
		select {
		case <-l.more:
		case <-end.C:
			t.Fatalf("no line %q in %q", prefix, l.String())
		}
	}
}

func (l *lines) awaitPID(t testing.TB, prefix string) int {
	t.Helper()
	pid, err := strconv.Atoi(l.await(t, prefix))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
