package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// plan is the size of the long proof, from the environment.
type plan struct {
	pods        int           // E2E_LONG_PODS: replaced at least
	requests    int           // E2E_LONG_REQUESTS: of each protocol at least
	deployments int           // E2E_LONG_DEPLOYMENTS: rolled at the same time
	replicas    int           // E2E_LONG_REPLICAS: of each
	paused      time.Duration // E2E_LONG_PAUSED: kube-proxy is paused for so long, again and again
	most        time.Duration // E2E_LONG_MOST: it ends after so long in any case
}

// longPlan skips the test unless it is asked for.
func longPlan(t *testing.T) plan {
	t.Helper()
	if os.Getenv("E2E") != "long" {
		t.Skip("takes half an hour: make e2e-long")
	}
	number := func(name string, otherwise int) int {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 {
			t.Fatalf("%s is %q, want a number", name, text)
		}
		return n
	}
	length := func(name string, otherwise time.Duration) time.Duration {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return d
	}
	return plan{
		pods: number("E2E_LONG_PODS", 1000), requests: number("E2E_LONG_REQUESTS", 100_000),
		deployments: number("E2E_LONG_DEPLOYMENTS", 4), replicas: number("E2E_LONG_REPLICAS", 4),
		paused: length("E2E_LONG_PAUSED", 1500*time.Millisecond), most: length("E2E_LONG_MOST", 2*time.Hour),
	}
}

// The long proof runs in rounds, because a load is bounded.
const longRound = 5 * time.Minute

// everyProtocol returns the clients of one deployment, each with its port of the Service.
// Half of each kind is busy, and half is idle for up to 4 s.
func everyProtocol() map[string][]crowd {
	busy, idle := between(0, 200*time.Millisecond), between(0, 4*time.Second)
	brief := func() time.Duration { return between(0, 300*time.Millisecond)() }
	long := between(time.Second, 10*time.Second)
	return map[string][]crowd{
		"http": {
			{"HTTP/1.1, kept connections", 4, http1("/work", 201, busy)}, {"HTTP/1.1, kept connections", 6, http1("/work", 201, idle)},
			{"HTTP/1.1, a connection each", 6, fresh("/work", 201, busy)},
			{"HTTP/2 POST, cleartext", 4, postOnce(false, "/work", 201, busy)}, {"HTTP/2 POST, cleartext", 6, postOnce(false, "/work", 201, idle)},
			{"event streams", 10, finite(brief)}, {"event streams", 3, finite(long)},
			{"websocket messages", 4, chatting(openSocket, busy)}, {"websocket messages", 4, chatting(openSocket, idle)},
		},
		"https": {
			{"HTTP/2 POST, TLS", 4, postOnce(true, "/work", 201, busy)}, {"HTTP/2 POST, TLS", 6, postOnce(true, "/work", 201, idle)},
		},
		"grpc": {
			{"gRPC calls", 4, calling(false, busy)}, {"gRPC calls", 6, calling(false, idle)},
			{"gRPC stream messages", 4, chatting(openCall, busy)}, {"gRPC stream messages", 4, chatting(openCall, idle)},
		},
	}
}

// longKinds are the kinds in the order of the table.
var longKinds = []string{
	"HTTP/1.1, kept connections", "HTTP/1.1, a connection each", "HTTP/2 POST, cleartext", "HTTP/2 POST, TLS",
	"gRPC calls", "gRPC stream messages", "websocket messages", "event streams",
}

// crew is a deployment of the long proof: all protocols, three ports, and no logs,
// because a thousand pods would write them.
type crew struct {
	*deployed
	ports map[string]string // by name: an address on this machine
}

func (c *cluster) crew(t *testing.T, name string, replicas int, args ...string) *crew {
	t.Helper()
	d := deployment{name: name, image: c.app, replicas: replicas, surge: "100%", args: append([]string{"-tls=:8443", "-grpc=:9090"}, args...)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "deployment,service", name, "--ignore-not-found", "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	svc := service(name, object{"deployment": name})
	svc["spec"].(object)["ports"] = []object{
		{"name": "http", "port": 80, "targetPort": 8080}, {"name": "https", "port": 443, "targetPort": 8443}, {"name": "grpc", "port": 9090, "targetPort": 9090},
	}
	c.apply(t, d.object(), svc)
	up := &crew{&deployed{cluster: c, name: name, pods: &pods{changed: make(chan struct{})}}, make(map[string]string)}
	watch(t, c, []string{"pods", "--selector", "deployment=" + name}, up.pods.take)
	up.rolledOut(t)
	for _, port := range []string{"http", "https", "grpc"} {
		up.ports[port] = "127.0.0.1:" + c.must(t, "get", "service", name, "--output", `jsonpath={.spec.ports[?(@.name=="`+port+`")].nodePort}`)
	}
	up.addr = up.ports["http"]
	awaitAnswer(t, up.addr)
	for _, addr := range up.ports {
		forgetDials(t, addr)
	}
	return up
}

// start starts the clients of every protocol. onLoss may be nil.
func (c *crew) start(t *testing.T, onLoss func()) []*load {
	var all []*load
	for port, crowds := range everyProtocol() {
		all = append(all, startLoad(t.Context(), c.ports[port], onLoss, crowds...))
	}
	return all
}

// roll restarts the deployment until ctx ends, and returns how often.
func (c *crew) roll(ctx context.Context) (rolls int, err error) {
	for ; ctx.Err() == nil; rolls++ {
		// Not under ctx: a rollout that has begun is awaited.
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		_, err := c.kubectl(own, "rollout", "restart", "deployment/"+c.name)
		if err == nil {
			_, err = c.kubectl(own, "rollout", "status", "deployment/"+c.name)
		}
		for err == nil && slices.ContainsFunc(c.pods.list(), func(p *pod) bool { return !p.stopped.IsZero() && p.gone.IsZero() }) {
			if !pause(own, 100*time.Millisecond) {
				err = errors.New("its pods do not end")
			}
		}
		cancel()
		if err != nil {
			return rolls, fmt.Errorf("deployment/%s: %w", c.name, err)
		}
	}
	return rolls, nil
}

// limp pauses kube-proxy again and again until stop is called, so that a change of
// endpoints takes up to that time longer.
func (c *cluster) limp(t *testing.T, paused time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var limping sync.WaitGroup
	limping.Go(func() {
		for {
			// Not under ctx: it must resume kube-proxy.
			if _, err := command(context.WithoutCancel(ctx), nil, c.script, "pause", "kube-proxy", strconv.FormatFloat(paused.Seconds(), 'f', -1, 64)); err != nil {
				t.Error(err)
				return
			}
			if !pause(ctx, time.Second) {
				return
			}
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		limping.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestLongProof replaces a thousand pods under load of every protocol while
// endpoints spread slowly: no request is lost.
func TestLongProof(t *testing.T) {
	plan := longPlan(t)
	c := onCluster(t)
	began := time.Now()
	var crews []*crew
	for i := range plan.deployments {
		crews = append(crews, c.crew(t, fmt.Sprintf("long-%d", i), plan.replicas))
	}
	total, rolls := make(sums), 0
	for round := 1; !total.enough(plan, crews); round++ {
		left := plan.most - time.Since(began)
		if left < time.Minute {
			t.Errorf("after %v it has replaced %d pods of %d: E2E_LONG_MOST gives it longer", plan.most, replaced(crews), plan.pods)
			break
		}
		upright := c.limp(t, plan.paused)
		var loads []*load
		for _, crew := range crews {
			loads = append(loads, crew.start(t, crew.evidence(t))...)
		}
		pause(t.Context(), 3*time.Second)
		rolls += rollAll(t, crews, min(longRound, left-30*time.Second), func() bool { return replaced(crews) >= plan.pods && total.with(loads).enough(plan, crews) })
		pause(t.Context(), 2*time.Second)
		for _, l := range loads {
			total.add(l.stop()...)
		}
		upright()
		t.Logf("round %d, %v: %d pods replaced\n%s", round, time.Since(began).Round(time.Second), replaced(crews), total)
		if t.Failed() {
			break
		}
	}
	took := time.Since(began)
	for _, kind := range longKinds {
		if l := total[kind]; l.seen() == 0 {
			t.Errorf("%s: no server ever sent a client away: the drain was not put to the test", kind)
		} else if lost, sent := l.lost(); lost > 0 {
			t.Errorf("%s: %d of %d requests lost:\n%s", kind, lost, sent, l.explain(stopsOf(crews), 12))
		}
	}
	for _, crew := range crews {
		crew.endedWell(t)
	}
	table := total.table(c, t, plan, took, replaced(crews), rolls)
	t.Logf("for docs/reference/benchmarks.md:\n%s", table)
	if path := os.Getenv("E2E_LONG_TABLE"); path != "" {
		if err := os.WriteFile(path, []byte(table), 0o644); err != nil {
			t.Error(err)
		}
	}
}

// TestLongControl is the same against servers that call Shutdown at SIGTERM: the
// clients of every protocol see what they look for.
func TestLongControl(t *testing.T) {
	plan := longPlan(t)
	c := onCluster(t)
	crew := c.crew(t, "long-plain", plan.replicas, "-server=plain")
	c.limp(t, plan.paused)
	total := make(sums)
	loads := crew.start(t, nil)
	pause(t.Context(), 3*time.Second)
	rollAll(t, crews{crew}, 30*time.Second, func() bool { return replaced(crews{crew}) >= 3*plan.replicas })
	pause(t.Context(), 2*time.Second)
	for _, l := range loads {
		total.add(l.stop()...)
	}
	t.Logf("without the library, %d pods replaced:\n%s", replaced(crews{crew}), total)
	for _, kind := range longKinds {
		if lost, _ := total[kind].lost(); lost == 0 {
			t.Errorf("%s: nothing is lost where requests have to be: the test is blind", kind)
		}
	}
}

type crews = []*crew

// rollAll rolls all deployments at once, each at its own pace, for that time or until
// it is enough.
func rollAll(t *testing.T, all crews, most time.Duration, enough func() bool) (rolls int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var rolling sync.WaitGroup
	var mu sync.Mutex
	for _, c := range all {
		rolling.Go(func() {
			n, err := c.roll(ctx)
			mu.Lock()
			defer mu.Unlock()
			rolls += n
			if err != nil {
				t.Error(err)
				cancel()
			}
		})
	}
	for pause(ctx, time.Second) {
		if enough() {
			cancel()
		}
	}
	rolling.Wait()
	return rolls
}

// replaced counts the pods that are gone.
func replaced(all crews) (n int) {
	for _, c := range all {
		for _, p := range c.pods.list() {
			if !p.gone.IsZero() {
				n++
			}
		}
	}
	return n
}

func stopsOf(all crews) (stops []stop) {
	for _, c := range all {
		stops = append(stops, c.pods.stops()...)
	}
	return stops
}

// sums has a ledger for each kind: the sum of all ledgers of that kind.
type sums map[string]*ledger

func (s sums) add(ledgers ...*ledger) {
	for _, l := range ledgers {
		if s[l.kind] == nil {
			s[l.kind] = newLedger(l.kind)
		}
		s[l.kind].merge(l)
	}
}

// with returns the sums as they would be if the loads ended now.
func (s sums) with(loads []*load) sums {
	all := make(sums)
	for _, l := range s {
		all.add(l)
	}
	for _, l := range loads {
		all.add(l.ledgers...)
	}
	return all
}

func (s sums) enough(p plan, all crews) bool {
	if replaced(all) < p.pods {
		return false
	}
	for _, kind := range longKinds {
		if l := s[kind]; l == nil {
			return false
		} else if _, sent := l.lost(); sent < p.requests {
			return false
		}
	}
	return true
}

func (s sums) String() string {
	var b strings.Builder
	for _, kind := range longKinds {
		if l := s[kind]; l != nil {
			fmt.Fprintf(&b, "%s\n", l)
		}
	}
	return b.String()
}

// table returns what was reached, in Markdown.
func (s sums) table(c *cluster, t *testing.T, p plan, took time.Duration, pods, rolls int) string {
	t.Helper()
	var version struct {
		ServerVersion struct{ GitVersion string }
	}
	if err := json.Unmarshal([]byte(c.must(t, "version", "--output", "json")), &version); err != nil {
		t.Error(err)
	}
	revision, err := command(t.Context(), nil, "git", "describe", "--always", "--dirty", "--abbrev=12")
	if err != nil {
		revision = "unknown"
	}
	kernel, err := command(t.Context(), nil, "uname", "-sr")
	if err != nil {
		kernel = "unknown"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d pods replaced in %.0f s, in %d rolling restarts of %d Deployments of %d replicas. kube-proxy was paused for %v out of every %v.\n\n",
		pods, took.Seconds(), rolls, p.deployments, p.replicas, p.paused, p.paused+time.Second)
	back := 0
	b.WriteString("| clients | requests | lost | asked to reconnect | slowest |\n| --- | --- | --- | --- | --- |\n")
	for _, kind := range longKinds {
		l := s[kind]
		lost, sent := l.lost()
		slowest, unsent := l.worst()
		back += unsent
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %v |\n", kind, sent, lost, l.seen(), slowest.Round(time.Millisecond))
	}
	if back > 0 {
		fmt.Fprintf(&b, "\nnet/http's client took back %d of the POSTs before it had written a frame, because the goodbye reached the connection in that moment; the test sent them again.\n", back)
	}
	fmt.Fprintf(&b, "\nKubernetes %s on one node, %s, %d cores, %s; this repository at %s. The clients and the cluster share the machine.\n",
		version.ServerVersion.GitVersion, strings.TrimSpace(kernel), runtime.NumCPU(), runtime.Version(), strings.TrimSpace(revision))
	return b.String()
}
