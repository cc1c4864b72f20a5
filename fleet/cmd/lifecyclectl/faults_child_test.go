package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/worker"
)

// faultMain is the program of a child of TestFaultsAreNamed: a process of the operating
// system that announces itself and then does what it reads on its standard input.
func faultMain() {
	id := os.Getenv("FAULT_ID")
	if id == "" {
		return
	}
	service, id, ok := strings.Cut(id, ".")
	if !ok {
		service, id = "till", service
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	if file := os.Getenv("FAULT_CONFIG"); file != "" {
		_, err := config.Load[struct {
			Address string `koanf:"address"`
		}](file)
		fail(err)
	}
	clock := func(text string) {
		off, err := time.ParseDuration(text)
		fail(err)
		fail(setClock(off))
	}
	if off := os.Getenv("FAULT_CLOCK"); off != "" {
		clock(off)
	}
	if os.Getenv("FAULT_NATS") == "" {
		fmt.Println(time.Now().Unix())
		os.Exit(0)
	}
	b, err := broker.Connect(context.Background(), broker.Config{URL: os.Getenv("FAULT_NATS"), Logger: brokertest.Quiet()})
	fail(err)
	cfg := lifecycle.Config{Name: service, HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}
	if os.Getenv("FAULT_DRAIN") != "" {
		cfg.DrainInterval, cfg.DrainMin = time.Hour, lifecycle.Off
	}
	if os.Getenv("FAULT_HANG") != "" {
		cfg.ShutdownGrace = 3 * time.Second
	}
	app, err := lifecycle.New(cfg, lifecycle.WithLogger(brokertest.Quiet()))
	fail(err)
	presence.Announce(app, b.JetStream(), presence.Config{ID: id, Version: cmp.Or(os.Getenv("FAULT_VERSION"), "1.2.3"), Logger: brokertest.Quiet()})
	tree := worker.NewSupervisor("children", worker.SupervisorConfig{})
	if os.Getenv("FAULT_TREE") != "" {
		fail(tree.Add(worker.FuncSpec("mailer", func(ctx context.Context) error { <-ctx.Done(); return nil })))
		app.Add(tree)
	}
	if addr := os.Getenv("FAULT_ADDR"); addr != "" {
		app.Serve("http", &http.Server{Addr: addr})
	}
	if off := os.Getenv("FAULT_CLOCK_THEN"); off != "" {
		clock(off) // before its first announcement
	}
	if cfg.DrainMin != 0 {
		app.OnDrain("streams", lifecycle.DrainFunc(func(ctx context.Context) error { <-ctx.Done(); return nil }))
	}
	if os.Getenv("FAULT_HANG") != "" {
		app.OnShutdown("flush", func(context.Context) error { select {} })
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			switch what, _, _ := strings.Cut(lines.Text(), " "); what {
			case "suspend": // sixteen minutes ago
				clock("-16m")
				app.Suspend("new disk")
				clock("0s")
			case "park": // sixteen minutes ago
				clock("-16m")
				fail(tree.StopChild(context.Background(), "mailer"))
				clock("0s")
			case "spin":
				go func() {
					n := uint64(1)
					for n != 0 { // for longer than anyone waits
						n++
					}
				}()
			case "fill": // to most of the limit
				limit := 0
				_, _ = fmt.Sscanf(lines.Text(), "fill %d", &limit)
				for resident() < limit*94/100 {
					eat(1 << 20)
				}
			case "leak":
				go func() {
					for range 2000 {
						for range 20 {
							go func() { select {} }()
						}
						time.Sleep(100 * time.Millisecond)
					}
				}()
			case "threads":
				for range 1100 {
					go func() { _ = syscall.Pause() }()
				}
			case "files":
				fail(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 200, Max: 200}))
				for fd := 0; fd < 190; { // whatever this process was given and has opened before
					var err error
					fd, err = syscall.Open(os.DevNull, syscall.O_RDONLY, 0)
					fail(err)
				}
			case "burst":
				for {
					eat(16 << 20)
				}
			}
		}
		app.Stop(nil) // the test has ended
	}()
	if err := app.Run(context.Background()); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// eat takes memory for good.
func eat(bytes int) {
	page, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		os.Exit(3)
	}
	for i := 0; i < len(page); i += 4096 {
		page[i] = 1
	}
}

// resident returns the memory of this process in bytes, without the pages of files.
func resident() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		os.Exit(3)
	}
	_, rest, _ := strings.Cut(string(text), "RssAnon:")
	kib := 0
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		os.Exit(3)
	}
	return kib << 10
}

// command returns a child that announces itself as id.
func (s *site) command(id string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append([]string{"FAULT_ID=" + id, "FAULT_NATS=" + s.nats}, env...)...)
	return cmd
}

// child starts a process of the operating system, and waits until it is in the fleet and
// ready. It ends with the test.
func (s *site) child(t *testing.T, id string, env ...string) (cmd *exec.Cmd, stdin io.Writer) {
	t.Helper()
	cmd = s.command(id, env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	brokertest.Await(t, id, func() bool {
		p, err := s.get(id)
		return err == nil && p.Ready && p.PID == cmd.Process.Pid
	})
	return cmd, in
}

// cgroup makes a directory for the cgroups of children, in the hierarchy that limits
// memory; "" when this machine allows none.
func cgroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("faults-test-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Errorf("a cgroup is left: %v", err)
			}
		})
		return dir
	}
	return ""
}
