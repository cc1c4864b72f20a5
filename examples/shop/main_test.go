//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// asChild makes the test binary act as the program.
const asChild = "TEST_IS_SHOP"

func TestMain(m *testing.M) {
	host.EngineMain(js.New())
	if os.Getenv(asChild) != "" {
		main()
	}
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

const (
	patience  = 5 * time.Minute // for one step, on a machine that does much else
	payWithin = 10 * time.Second
)

// process is one process of the shop.
type process struct {
	cmd   *exec.Cmd
	out   output
	ended chan error
}

// output is what a process has printed.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// addr returns where a server of the process listens, "" before it does.
func (p *process) addr(server string) string {
	what := "listening server=" + server
	if server == "health" {
		what = "health planes are served"
	}
	match := regexp.MustCompile(what + ` addr=(\S+)`).FindStringSubmatch(p.out.String())
	if match == nil {
		return ""
	}
	return match[1]
}

// begin starts a process and waits until it is ready.
func begin(t *testing.T, nats string) *process {
	t.Helper()
	p := &process{ended: make(chan error, 1)}
	p.cmd = exec.Command(os.Args[0],
		"-config=shop.yaml",
		"-broker.url="+nats,
		"-addr=127.0.0.1:0",
		"-pay-within="+payWithin.String(),
		"-lifecycle.health-addr=127.0.0.1:0",
		"-lifecycle.drain-interval=1s",
		"-lifecycle.linger=1s",
		"-lifecycle.shutdown-grace=60s", // a slow machine has time for a clean stop
		"-lifecycle.unit-slice=30s",
		"-lifecycle.termination-grace=75s",
		"-host.lease-ttl=5s",
		"-operator.addr=127.0.0.1:0",
	)
	p.cmd.Env = append(os.Environ(), asChild+"=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("a process printed\n%s", &p.out)
		}
	})
	await(t, "a process is ready", func() bool { return get(p.addr("health"), "/readyz") != "" })
	return p
}

// stop is what a rollout does to the old process.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		p.ended <- err
		if err != nil {
			t.Errorf("a process that was asked to stop ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a process does not end")
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	p.ended <- <-p.ended
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for this: %s", patience, what)
		}
	}
}

var client = &http.Client{Timeout: 10 * time.Second}

func get(addr, path string) string {
	resp, err := client.Get("http://" + addr + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return ""
	}
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// shop is the fleet as a load balancer sees it, and what its clients were told.
type shop struct {
	mu      sync.Mutex
	addrs   []string
	told    map[string]string // the phase that each order must end in
	baskets map[string]Basket
}

func (s *shop) route(processes ...*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addrs = nil
	for _, p := range processes {
		s.addrs = append(s.addrs, p.addr("http"))
	}
}

// ask sends a request to any process until it is answered, as a client with an
// idempotency key may.
func (s *shop) ask(ctx context.Context, path, key, body string) (status int, order Order, err error) {
	for ctx.Err() == nil {
		s.mu.Lock()
		addr := s.addrs[rand.IntN(len(s.addrs))]
		s.mu.Unlock()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			return 0, order, err
		}
		req.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(req)
		if err == nil {
			text, readErr := io.ReadAll(resp.Body)
			resp.Body.Close()
			if readErr == nil && resp.StatusCode != http.StatusServiceUnavailable {
				_ = json.Unmarshal(text, &order) // of an error it is empty
				return resp.StatusCode, order, nil
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, order, ctx.Err()
}

// buy places an order, and pays nine of ten.
func (s *shop) buy(ctx context.Context, t *testing.T, id string) {
	basket := Basket{Item: []string{"tea", "coffee", "cup"}[rand.IntN(3)], Quantity: 1 + rand.IntN(9)}
	body, _ := json.Marshal(basket)
	status, order, err := s.ask(ctx, "/orders", id, string(body))
	if err != nil || status != http.StatusCreated || order.Basket != basket {
		t.Errorf("order %s is answered with %d and %+v: %v", id, status, order, err)
		return
	}
	phase := "cancelled"
	if rand.IntN(10) > 0 {
		switch status, _, err = s.ask(ctx, "/orders/"+id+"/pay", id+"-paid", ""); {
		case err != nil:
			t.Errorf("the payment of %s: %v", id, err)
			return
		case status == http.StatusOK:
			phase = "shipped"
		case status != http.StatusConflict: // the deadline was first: the machine stood still
			t.Errorf("the payment of %s is answered with %d", id, status)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[id], s.baskets[id] = phase, basket
}

// Three processes of the shop are rolled, killed and started again under load. Each order
// that a client was told of is done exactly once.
func TestEachOrderIsDoneOnce(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skipf("there is no Python on this machine: %v", err)
	}
	defer client.CloseIdleConnections()
	nats := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	s := &shop{told: make(map[string]string), baskets: make(map[string]Basket)}
	fleet := []*process{begin(t, nats.ClientURL()), begin(t, nats.ClientURL()), begin(t, nats.ClientURL())}
	s.route(fleet...)

	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var load sync.WaitGroup
	closing := make(chan struct{})
	for c := range 4 {
		load.Go(func() {
			for n := 0; ctx.Err() == nil && !t.Failed(); n++ {
				select {
				case <-closing:
					return
				case <-time.After(100 * time.Millisecond):
				}
				s.buy(ctx, t, fmt.Sprintf("%d-%d", c, n))
			}
		})
	}
	for i := range fleet { // a rollout: the new process is ready before the old one is asked to stop
		next := begin(t, nats.ClientURL())
		old := fleet[i]
		fleet[i] = next
		s.route(fleet...)
		old.stop(t)
	}
	for _, i := range []int{0, 1, 2} { // a process of every role dies and is started again
		fleet[i].kill()
		fleet[i] = begin(t, nats.ClientURL())
		s.route(fleet...)
	}
	close(closing)
	load.Wait()
	s.check(t, nats)
	s.checkDashboard(t, fleet[0])
	for _, p := range fleet {
		p.stop(t)
	}
}

// check compares what is stored with what the clients were told.
func (s *shop) check(t *testing.T, nats *broker.Broker) {
	mgr := workflow.NewManager(nats.JetStream(), brokertest.Quiet())
	defer mgr.Close()
	if err := mgr.Register(orderWorkflow, newOrder, phases); err != nil {
		t.Fatal(err)
	}
	orders := workflow.For[*Order](mgr, orderWorkflow)
	await(t, "all orders are done", func() bool {
		active, err := orders.List(t.Context(), workflow.ListOptions{Active: true, Limit: 1})
		return err == nil && len(active) == 0
	})
	all, err := orders.List(t.Context(), workflow.ListOptions{})
	if err != nil || len(all) != len(s.told) {
		t.Errorf("%d orders are stored, and clients know of %d: %v", len(all), len(s.told), err)
	}
	cents := map[string]int{"tea": 400, "coffee": 700, "cup": 1200}
	ways := map[string]string{"shipped": "placed paid shipped", "cancelled": "placed cancelled"}
	var numbers []int
	for _, o := range all {
		want := s.baskets[o.ID]
		if o.State != s.told[o.ID] || o.Basket != want || o.Cents != cents[want.Item]*want.Quantity {
			t.Errorf("%+v is stored, and the client was told %q and wanted %+v", o, s.told[o.ID], want)
		}
		var way []string
		events, err := orders.History(t.Context(), o.ID)
		for _, e := range events {
			way = append(way, e.To)
		}
		if got := strings.Join(way, " "); err != nil || got != ways[o.State] {
			t.Errorf("order %s went %s, want %s: %v", o.ID, got, ways[o.State], err)
		}
		if o.State == "shipped" {
			n, err := strconv.Atoi(strings.TrimPrefix(o.Label, "parcel "))
			if err != nil {
				t.Errorf("the label of %s: %v", o.ID, err)
			}
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != i+1 {
			t.Fatalf("the parcels have the numbers %v: want 1 to %d, each once", numbers, len(numbers))
		}
	}
	stream, err := nats.JetStream().Stream(t.Context(), labels.Name)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != uint64(len(numbers)) {
		t.Errorf("the worker published %d labels for %d parcels: %v", info.State.Msgs, len(numbers), err)
	}
	if len(numbers) == 0 || len(numbers) == len(all) {
		t.Errorf("%d of %d orders were shipped: want some of both", len(numbers), len(all))
	}
	t.Logf("%d orders, %d of them shipped", len(all), len(numbers))
}

// checkDashboard expects that operators see the orders, the worker and three processes.
func (s *shop) checkDashboard(t *testing.T, p *process) {
	await(t, "operators see three processes", func() bool {
		return strings.Count(get(p.addr("dashboard"), "/processes"), `"ready":true`) == 3
	})
	for path, want := range map[string]string{"/workflows/order?phase=shipped": `"label":"parcel `, "/workers": `"id":"label"`, "/ui/": "shop"} {
		if got := get(p.addr("dashboard"), path); !strings.Contains(got, want) {
			t.Errorf("%s has no %q: %s", path, want, got)
		}
	}
}

// The sections of the file are those of the program: a key that a part does not have is a fault.
func TestFileConfiguresAllParts(t *testing.T) {
	cfg, err := config.Load[Config]("shop.yaml", config.WithArgs(nil), config.WithEnviron(nil))
	if err != nil {
		t.Fatal(err)
	}
	isRead := cfg.Lifecycle.TerminationGrace == 30*time.Second && cfg.Broker.StoreDir == "shop-data" && cfg.Presence.Version == "v1.0.0" &&
		cfg.Pool.DrainTimeout == 5*time.Second && cfg.Host.DrainTimeout == 5*time.Second && cfg.Operator.Name == "shop"
	if !isRead {
		t.Errorf("not all sections are read: %+v", cfg)
	}
}
