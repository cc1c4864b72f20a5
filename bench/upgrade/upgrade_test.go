//go:build linux

package upgrade

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudflare/tableflip"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"go.uber.org/goleak"
)

// Each peer is a server that runs as a process of its own. The variables say which, and where.
const (
	peerVar  = "BENCH_UPGRADE_PEER"
	addrVar  = "BENCH_UPGRADE_ADDR"
	grpcVar  = "BENCH_UPGRADE_GRPC"  // set for a server of gRPC
	nginxVar = "BENCH_UPGRADE_NGINX" // what follows the address in nginx's listen
)

// peer is one way to replace a process.
type peer struct {
	name  string
	serve func(addr string) error
	// replace replaces the process pid and returns when another one answers.
	replace func(s *service, pid int) error
}

var peers = []peer{
	{"restart", restartable(false), (*service).restart},
	{"so-reuseport", restartable(true), (*service).startFirst},
	{"nginx", nginx, (*service).replaceNginx},
	{"tableflip", flip, func(s *service, pid int) error { return s.signal(pid, syscall.SIGHUP) }},
	{"lifecycle-go", upgradable, func(s *service, pid int) error { return s.signal(pid, syscall.SIGUSR2) }},
}

func TestMain(m *testing.M) {
	name := os.Getenv(peerVar)
	if name == "" {
		goleak.VerifyTestMain(m)
		return
	}
	i := slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
	if err := peers[i].serve(os.Getenv(addrVar)); err != nil {
		fmt.Fprintln(os.Stderr, name, err)
		os.Exit(1)
	}
}

// patience is how long a stop may take in each peer.
const patience = 10 * time.Second

// restartable serves until SIGTERM and then calls Shutdown. With reuse several processes
// listen at the same address.
func restartable(reuse bool) func(string) error {
	return func(addr string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			if !reuse {
				return nil
			}
			const soReusePort = 15 // SO_REUSEPORT of asm-generic/socket.h
			var err error
			cerr := raw.Control(func(fd uintptr) {
				err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1)
			})
			return errors.Join(err, cerr)
		}}
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		srv := newServer()
		go func() { _ = srv.Serve(ln) }()
		<-ctx.Done()
		return srv.stop()
	}
}

// flip is the server of tableflip's documentation.
func flip(addr string) error {
	upg, err := tableflip.New(tableflip.Options{})
	if err != nil {
		return err
	}
	defer upg.Stop()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		for range hup {
			for upg.Upgrade() != nil { // refused as long as the process before this one has not ended
				select {
				case <-upg.Exit():
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}
	}()
	go func() { <-term; upg.Stop() }()
	ln, err := upg.Listen("tcp", addr)
	if err != nil {
		return err
	}
	srv := newServer()
	go func() { _ = srv.Serve(ln) }()
	if err := upg.Ready(); err != nil {
		return err
	}
	fmt.Println("ready")
	<-upg.Exit()
	return srv.stop()
}

func upgradable(addr string) error {
	cfg := lifecycle.Config{HealthAddr: lifecycle.HealthOff, UpgradeSignal: "SIGUSR2", TerminationLog: "off"}
	app, err := lifecycle.New(cfg,
		lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	if os.Getenv(grpcVar) == "" {
		app.Serve("http", httpServer(addr))
	} else {
		ln, err := app.Listen("tcp", addr)
		if err != nil {
			return err
		}
		app.GRPC("grpc", grpcServer(), ln, nil)
	}
	go func() {
		select {
		case <-app.Reached(lifecycle.PhaseRunning):
			fmt.Println("ready")
		case <-app.Reached(lifecycle.PhaseFailed):
		}
	}()
	return app.Run(context.Background())
}

// nginxFolder has the files of the nginx that listens at addr.
func nginxFolder(addr string) string {
	return filepath.Join(os.TempDir(), "bench-upgrade-nginx-"+strings.ReplaceAll(addr, ":", "-"))
}

// nginxConfig lets a worker answer with its process id. nginx has to be a daemon: one that has the
// parent that started it ignores USR2.
const nginxConfig = `worker_processes 2;
pid %[1]s/nginx.pid;
error_log /dev/null;
events { worker_connections 512; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server { listen %[2]s%[3]s; location / { return 200 $pid; } }
}
`

// nginx runs nginx, whose workers answer without the moment that the other peers take.
func nginx(addr string) error {
	dir := nginxFolder(addr)
	config := filepath.Join(dir, "nginx.conf")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(config, fmt.Appendf(nil, nginxConfig, dir, addr, os.Getenv(nginxVar)), 0o600)); err != nil {
		return err
	}
	program, err := exec.LookPath("nginx") // it starts itself again by the path that it was given
	if err != nil {
		return err
	}
	if out, err := exec.Command(program, "-c", config, "-e", "/dev/null").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	fmt.Println("ready") // it listens before it becomes a daemon
	select {}
}

// endNginx kills what is left of nginx.
func endNginx(addr string) {
	dir := nginxFolder(addr)
	for _, name := range []string{"nginx.pid", "nginx.pid.oldbin"} {
		if pid := pidIn(filepath.Join(dir, name)); pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGTERM) // ends at once, with its workers
			for runs(pid) {
				time.Sleep(time.Millisecond)
			}
		}
	}
	_ = os.RemoveAll(dir) // of nginx alone
}

// pidIn returns the process id in a file, or 0 while there is none.
func pidIn(file string) int {
	text, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// replaceNginx does what its documentation calls upgrading an executable on the fly: USR2 starts
// another master beside the one that runs, and QUIT ends that one.
func (s *service) replaceNginx(int) error {
	file := filepath.Join(nginxFolder(s.addr), "nginx.pid")
	old := pidIn(file)
	if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
		return err
	}
	late := time.Now().Add(2 * patience)
	for begun := pidIn(file); begun == 0 || begun == old || !hasWorkers(begun); begun = pidIn(file) {
		if time.Now().After(late) {
			return errors.New("nginx: no other master has workers")
		}
		time.Sleep(time.Millisecond)
	}
	return syscall.Kill(old, syscall.SIGQUIT)
}

// runs reports whether a process runs, and is no zombie.
func runs(pid int) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a zombie has none
	return len(line) > 0
}

// isOrphan reports whether a process is a child of process 1.
func isOrphan(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // of one that has ended
	return strings.Contains(string(status), "\nPPid:\t1\n")
}

// hasWorkers reports whether a master of nginx has started its workers.
func hasWorkers(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // of a process that has just begun
	return len(strings.Fields(string(text))) == 2
}

// service is the processes of one peer.
type service struct {
	peer  peer
	addr  string
	env   []string
	ready chan struct{}
	files []*os.File
	cmds  []*exec.Cmd
	read  sync.WaitGroup
}

func newService(b *testing.B, p peer, env ...string) *service {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &service{peer: p, addr: ln.Addr().String(), env: env, ready: make(chan struct{}, 16)}
	_ = ln.Close()
	if err := s.start(); err != nil {
		b.Fatal(err)
	}
	return s
}

// start starts a process and waits until it serves.
func (s *service) start() error {
	r, w, err := os.Pipe() // not by exec.Cmd: the processes that come later have it too
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(s.env, peerVar+"="+s.peer.name, addrVar+"="+s.addr)...)
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = w.Close()
	if err != nil {
		return errors.Join(err, r.Close())
	}
	s.cmds, s.files = append(s.cmds, cmd), append(s.files, r)
	s.read.Go(func() {
		for in := bufio.NewScanner(r); in.Scan(); {
			s.ready <- struct{}{}
		}
	})
	return s.awaitReady()
}

func (s *service) awaitReady() error {
	select {
	case <-s.ready:
		return nil
	case <-time.After(2 * patience):
		return fmt.Errorf("%s: no process is ready", s.peer.name)
	}
}

// signal asks the process to replace itself.
func (s *service) signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil {
		return err
	}
	return s.awaitReady()
}

// restart ends the process and starts another one.
func (s *service) restart(pid int) error {
	last := s.cmds[len(s.cmds)-1]
	if err := errors.Join(syscall.Kill(pid, syscall.SIGTERM), last.Wait()); err != nil {
		return err
	}
	return s.start()
}

// startFirst starts another process and then ends the old one.
func (s *service) startFirst(pid int) error {
	last := s.cmds[len(s.cmds)-1]
	if err := s.start(); err != nil {
		return err
	}
	return errors.Join(syscall.Kill(pid, syscall.SIGTERM), last.Wait())
}

// end kills all processes.
func (s *service) end() {
	for _, cmd := range s.cmds {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with those that replaced it
		_ = cmd.Wait()                                      // once more, for some
	}
	s.read.Wait()
	for _, f := range s.files {
		_ = f.Close()
	}
	endNginx(s.addr)
}

// BenchmarkUpgrade replaces a process b.N times under clients of a kind, and counts what they lose.
// p99-ms is of the second in which the process was replaced, the worst of all.
func BenchmarkUpgrade(b *testing.B) {
	for _, k := range kinds {
		for _, p := range peers {
			b.Run("client="+k.name+"/peer="+p.name, func(b *testing.B) { k.benchmark(b, p) })
		}
	}
}

func (k kind) benchmark(b *testing.B, p peer) {
	if p.name == "nginx" {
		switch _, err := exec.LookPath("nginx"); {
		case err != nil:
			b.Skip("needs nginx: apt-get install nginx-light")
		case k.nginx == none:
			b.Skip("nginx has no handlers of this kind")
		}
	}
	if k.program != "" {
		if _, err := exec.LookPath(k.program); err != nil {
			b.Skipf("needs %s: apt-get install %s", k.program, k.install)
		}
	}
	env := []string{nginxVar + "=" + string(k.nginx)}
	if k.grpc {
		env = append(env, grpcVar+"=yes")
	}
	s := newService(b, p, env...)
	defer s.end()
	if p.name == "nginx" && !isOrphan(pidIn(filepath.Join(nginxFolder(s.addr), "nginx.pid"))) {
		b.Skip("nginx replaces itself only as a child of process 1, and another process takes orphans here")
	}
	c := &clients{addr: s.addr}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var worst time.Duration
	for b.Loop() {
		pid, err := k.ask(c, ctx)
		if err != nil {
			b.Fatal(err)
		}
		under, over := context.WithCancel(ctx)
		ran := make(chan error, 1)
		go func() { ran <- k.run(c, under) }()
		time.Sleep(200 * time.Millisecond)
		err = p.replace(s, int(pid))
		time.Sleep(800 * time.Millisecond)
		over()
		if err := errors.Join(err, <-ran); err != nil {
			b.Fatal(err)
		}
		worst = max(worst, c.p99())
		for now := pid; now == pid; { // until nothing asks the old one any more
			if now, err = k.ask(c, ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(c.lost.Load()), "lost")
	b.ReportMetric(float64(c.answered.Load()), "answered")
	b.ReportMetric(float64(b.N), "upgrades")
	if worst > 0 {
		b.ReportMetric(float64(worst.Microseconds())/1000, "p99-ms")
	}
}
