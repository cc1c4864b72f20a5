package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/kube"
)

// leaseLasts has the proportions of client-go's 15 s: long enough for a busy machine.
const leaseLasts = 6 * time.Second

// TestLease lets a program with client-go's leader election and one with kube.Lease
// compete for one Lease. Never do both lead: in turns, when a holder is killed, when
// the API server hangs, and when a holder loses its permission.
func TestLease(t *testing.T) {
	c := onCluster(t)
	api := c.api(t)
	t.Run("in turns", func(t *testing.T) {
		e := newElection(t, c, api, "turns")
		start := map[string]func() candidate{"client-go": e.rival("client-go", true), "kube": e.own("kube", api)}
		running := make(map[string]candidate)
		for name, begin := range start {
			running[name] = begin()
		}
		for range 4 {
			leader := e.awaitLeader("")
			e.stop(running[leader])
			e.awaitLeader(leader) // the other one
			running[leader] = start[leader]()
		}
		for _, one := range running {
			e.stop(one)
		}
		e.mustNeverOverlap(map[string]int{"client-go": 2, "kube": 2})
	})
	if short() {
		return
	}
	t.Run("the holder is killed", func(t *testing.T) {
		e := newElection(t, c, api, "killed")
		rival := e.rival("client-go", true)()
		e.awaitLeader("")
		own := e.own("kube", api)()
		e.kill(rival)
		e.awaitLeader("client-go")
		e.stop(own)
		e.mustNeverOverlap(map[string]int{"client-go": 1, "kube": 1})
	})
	for _, first := range []string{"client-go", "kube"} {
		t.Run("the API server stands still while "+first+" leads", func(t *testing.T) {
			e := newElection(t, c, api, "still-"+first)
			begin := []func() candidate{e.rival("client-go", false), e.own("kube", api)}
			if first == "kube" {
				slices.Reverse(begin)
			}
			one := begin[0]()
			e.awaitLeader("")
			other := begin[1]()
			pause(t.Context(), time.Second)
			if out, err := command(t.Context(), nil, "bash", c.script, "pause", "kube-apiserver", "10"); err != nil {
				t.Fatal(out, err)
			}
			if who := e.leads(); who != "" {
				t.Errorf("%s leads after 10 s without an answer, of a lease of %v", who, leaseLasts)
			}
			e.awaitLeader("")
			e.stop(one)
			e.stop(other)
			e.mustNeverOverlap(map[string]int{first: 1})
		})
	}
	t.Run("the permission is taken away", func(t *testing.T) {
		e := newElection(t, c, api, "denied")
		c.apply(t,
			object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "elector"}},
			object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": object{"name": "elector"}, "rules": []object{
				{"apiGroups": []string{"coordination.k8s.io"}, "resources": []string{"leases"}, "verbs": []string{"get", "create", "update"}},
			}},
			electorBinding,
		)
		poor := api
		poor.Token = lifecycle.Secret(strings.TrimSpace(c.must(t, "create", "token", "elector")))
		own := e.own("kube", poor)()
		e.awaitLeader("")
		rival := e.rival("client-go", true)()
		c.must(t, "delete", "rolebinding", "elector")
		e.awaitLeader("kube")
		eventually(t, "a log line with the missing rule", func() bool {
			return strings.Contains(e.log.String(), `lacks the rule {apiGroups: [\"coordination.k8s.io\"], resources: [\"leases\"], verbs: [\"`)
		})
		e.stop(rival)
		c.apply(t, electorBinding)
		e.awaitLeader("client-go")
		e.stop(own)
		e.mustNeverOverlap(map[string]int{"client-go": 1, "kube": 2})
	})
}

var electorBinding = object{
	"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": "elector"},
	"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elector"},
	"subjects": []object{{"kind": "ServiceAccount", "name": "elector"}},
}

// api says how this machine reaches the API server, as its administrator.
func (c *cluster) api(t *testing.T) kube.Config {
	t.Helper()
	view := func(path string) string {
		return c.must(t, "config", "view", "--raw", "--minify", "--output", "jsonpath={"+path+"}")
	}
	cfg := kube.Config{Host: view(".clusters[0].cluster.server"), Token: lifecycle.Secret(view(".users[0].user.token")), Namespace: c.namespace}
	// The kubeconfig of a test cluster checks no certificate. kube always does.
	conn, err := tls.Dial("tcp", strings.TrimPrefix(cfg.Host, "https://"), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // only to learn its certificates
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, cert := range conn.ConnectionState().PeerCertificates {
		cfg.CA = append(cfg.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return cfg
}

// election follows who leads. Both kinds of candidates use the clock of this machine.
type election struct {
	*cluster
	t     *testing.T
	api   kube.Config
	lease string
	log   lockedBuffer

	mu    sync.Mutex // guards terms
	terms []term
}

// term is a time in which a candidate led; end is zero while it does.
type term struct {
	who        string
	begin, end time.Time
}

// candidate is a program that competes.
type candidate struct {
	name       string
	stop, kill func()
}

func newElection(t *testing.T, c *cluster, api kube.Config, lease string) *election {
	return &election{cluster: c, t: t, api: api, lease: "e2e-" + lease}
}

func (e *election) begin(who string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.terms = append(e.terms, term{who: who, begin: at})
}

func (e *election) end(who string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.terms {
		if e.terms[i].who == who && e.terms[i].end.IsZero() {
			e.terms[i].end = at
		}
	}
}

// leads returns who leads now, or "".
func (e *election) leads() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.terms {
		if one.end.IsZero() {
			return one.who
		}
	}
	return ""
}

// awaitLeader waits until a candidate leads that is not the one with this name.
func (e *election) awaitLeader(not string) (who string) {
	e.t.Helper()
	eventually(e.t, "a leader", func() bool { who = e.leads(); return who != "" && who != not })
	return who
}

func (e *election) stop(c candidate) { c.stop() }

// kill ends a candidate without a chance to give the lease back.
func (e *election) kill(c candidate) {
	e.end(c.name, time.Now())
	c.kill()
}

// mustNeverOverlap prints the terms and checks them: no two candidates led at once,
// and each led as often as wanted, or more.
func (e *election) mustNeverOverlap(atLeast map[string]int) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	slices.SortFunc(e.terms, func(a, b term) int { return cmp.Compare(a.begin.UnixNano(), b.begin.UnixNano()) })
	count := make(map[string]int)
	var last term
	for _, one := range e.terms {
		count[one.who]++
		if last.who != "" && one.begin.Before(last.end) {
			e.t.Errorf("%s led until %v and %s from %v: %v at once", last.who, last.end, one.who, one.begin, last.end.Sub(one.begin))
		}
		after := time.Duration(0)
		if last.who != "" {
			after = one.begin.Sub(last.end)
		}
		e.t.Logf("%-10s led for %v, after %v without a leader", one.who, one.end.Sub(one.begin).Round(time.Millisecond), after.Round(time.Millisecond))
		last = one
	}
	for who, n := range atLeast {
		if count[who] < n {
			e.t.Errorf("%s led %d times, want %d: the test proves little", who, count[who], n)
		}
	}
}

// rival starts the program with client-go. When release is set it gives the lease back
// as it ends.
func (e *election) rival(name string, release bool) func() candidate {
	program := os.Getenv("E2E_RIVAL")
	if program == "" {
		e.t.Fatal("E2E_RIVAL is not set: start deploy/e2e/run, it sets it")
	}
	ca := e.t.TempDir() + "/ca.crt"
	if err := os.WriteFile(ca, e.api.CA, 0o600); err != nil {
		e.t.Fatal(err)
	}
	return func() candidate {
		cmd := exec.Command(program, "-host="+e.api.Host, "-ca="+ca, "-token="+string(e.api.Token), "-namespace="+e.namespace,
			"-lease="+e.lease, "-id="+name+"-"+strconv.FormatInt(time.Now().UnixNano(), 36), "-lasts="+leaseLasts.String(), fmt.Sprintf("-release=%v", release))
		in, err := cmd.StdinPipe()
		if err != nil {
			e.t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			e.t.Fatal(err)
		}
		cmd.Stderr = &e.log
		if err := cmd.Start(); err != nil {
			e.t.Fatal(err)
		}
		var reader sync.WaitGroup
		reader.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				what, at, _ := strings.Cut(lines.Text(), " ")
				nano, _ := strconv.ParseInt(at, 10, 64)
				if what == "lead" {
					e.begin(name, time.Unix(0, nano))
				} else {
					e.end(name, time.Unix(0, nano))
				}
			}
		})
		over := sync.OnceFunc(func() {
			_ = in.Close()
			reader.Wait()
			_ = cmd.Wait() // killed, perhaps
		})
		kill := func() { _ = cmd.Process.Kill(); over() }
		e.t.Cleanup(kill)
		return candidate{name, over, kill}
	}
}

// own starts an App that leads with kube.Lease.
func (e *election) own(name string, api kube.Config) func() candidate {
	return func() candidate {
		client, err := kube.New(api)
		if err != nil {
			e.t.Fatal(err)
		}
		lease, err := client.Lease(kube.LeaseConfig{Name: e.lease, Identity: name, Duration: leaseLasts})
		if err != nil {
			e.t.Fatal(err)
		}
		app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off, LeaderRetry: leaseLasts / 8, TerminationLog: "off"},
			lifecycle.WithSignals(nil), lifecycle.WithLogger(slog.New(slog.NewTextHandler(&e.log, nil))))
		if err != nil {
			e.t.Fatal(err)
		}
		app.Lead(name, lease, func(ctx context.Context) error {
			e.begin(name, time.Now())
			<-ctx.Done()
			e.end(name, time.Now())
			return nil
		})
		var running sync.WaitGroup
		running.Go(func() {
			if err := app.Run(context.Background()); err != nil {
				e.t.Error(err)
			}
		})
		over := sync.OnceFunc(func() {
			app.Stop(nil)
			running.Wait()
			client.Close()
		})
		e.t.Cleanup(over)
		return candidate{name, over, over}
	}
}

// lockedBuffer is a buffer for several writers.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
