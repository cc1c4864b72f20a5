package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// proof has the part of the report of "lifecyclectl prove" that the tests use.
type proof struct {
	Sent, Lost int
	Kinds      []struct {
		Kind, Skipped        string
		Sent, Answered, Lost int
	}
	Steps []struct {
		Name    string
		Stopped int
	}
	Findings []finding
	Losses   []struct {
		Kind, How, Why, Pod, Cause, Step       string
		AfterDeletion, AfterEnd, WaitedSeconds float64
		At                                     time.Time
	}
}

type finding struct {
	Rule, Path, Value, Want, Reason, Fix string
	Losses                               int
}

// prove runs "lifecyclectl prove" on the Deployment, and returns the report.
// It checks the exit status, and that nothing is left behind.
func (d *deployed) prove(t *testing.T, flags ...string) proof {
	t.Helper()
	replicas := d.must(t, "get", "deployment", d.name, "--output", "jsonpath={.spec.replicas}")
	out, stderr, code := d.lifecyclectl(t, append([]string{"prove", "deployment/" + d.name, "--yes", "-o", "json", "--timeout", "5m"}, flags...)...)
	var p proof
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatalf("exit status %d, no report: %v\n%s", code, err, stderr)
	}
	t.Logf("%s\n%s", stderr, p)
	want := 0
	if p.Lost > 0 {
		want = 1
	}
	if code != want {
		t.Errorf("%d requests are lost, and the exit status is %d", p.Lost, code)
	}
	for _, s := range p.Steps {
		if s.Stopped == 0 {
			t.Errorf("the step %q stopped no pod", s.Name)
		}
	}
	if now := d.must(t, "get", "deployment", d.name, "--output", "jsonpath={.spec.replicas}{.metadata.annotations.lifecycle\\.pleme\\.io/prove-replicas}"); now != replicas {
		t.Errorf("there were %s replicas before, and now %s", replicas, now)
	}
	d.noJobs(t)
	return p
}

// lifecyclectl runs the program on this machine.
func (c *cluster) lifecyclectl(t *testing.T, args ...string) (stdout []byte, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.binary, append([]string{args[0], "--namespace", c.namespace, "--image", c.ctl}, args[1:]...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%v: %v\n%s", args, errors.Join(err, ctx.Err()), errs.String())
	}
	return out.Bytes(), errs.String(), cmd.ProcessState.ExitCode()
}

func (c *cluster) noJobs(t *testing.T) {
	t.Helper()
	eventually(t, "the Job of the load to be gone", func() bool {
		return c.must(t, "get", "jobs", "--selector", "app.kubernetes.io/name=lifecyclectl-prove", "--output", "name") == ""
	})
}

func (p proof) String() string {
	var b strings.Builder
	for _, k := range p.Kinds {
		fmt.Fprintf(&b, "%-18s sent %6d  answered %6d  lost %4d %s\n", k.Kind, k.Sent, k.Answered, k.Lost, k.Skipped)
	}
	for _, l := range p.Losses {
		if l.AfterEnd > 2 { // a stop explains the others
			fmt.Fprintf(&b, "%+v\n", l)
		}
	}
	for _, f := range p.Findings {
		fmt.Fprintf(&b, "%s: %d lost: %s is %q, want %q: %s\n", f.Rule, f.Losses, f.Path, f.Value, f.Want, f.Fix)
	}
	return b.String()
}

// find returns the finding of the rule, at the path.
func (p proof) find(t *testing.T, rule, path string) finding {
	t.Helper()
	for _, f := range p.Findings {
		if f.Rule == rule && f.Path == path {
			return f
		}
	}
	t.Fatalf("there is no %s at %s", rule, path)
	return finding{}
}

const mainContainer = "spec.template.spec.containers[0]"

// TestProveTheExample shows what a user of the library gets: nothing is lost, and no
// finding is made up.
func TestProveTheExample(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("proven", 2))
	d.pods.onStop = c.slow(t)
	d.ready(t)
	p := d.prove(t, "--post", "/work?note=prove", "--stream", "/events")
	if p.Lost != 0 || len(p.Findings) != 0 {
		t.Errorf("%d of %d requests lost: %v", p.Lost, p.Sent, p.Findings)
	}
	for _, k := range p.Kinds {
		if k.Skipped != "" || k.Answered == 0 {
			t.Errorf("%s was not put to the test: %+v", k.Kind, k)
		}
	}
	d.endedWell(t)
}

// TestProveThePlainServer finds what Shutdown at SIGTERM loses: new connections,
// which a preStop hook would save, and kept ones, which it would not.
func TestProveThePlainServer(t *testing.T) {
	c := onCluster(t)
	d := c.deploy(t, deployment{name: "unproven", image: c.app, replicas: 2, args: []string{"-server=plain"}})
	d.pods.onStop = c.slow(t)
	d.ready(t)
	p := d.prove(t, "--post", "/work")
	p.find(t, "prestop-missing", mainContainer+".lifecycle.preStop")
	p.find(t, "close-not-announced", "")
}

// dying is a server in Python that ends at SIGTERM on the spot, as many do.
const dying = `
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
`

// TestProvePythonWithoutPreStop finds the missing hook. With the hook that it asks
// for, nothing is lost.
func TestProvePythonWithoutPreStop(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := deployment{
		name: "snake", image: c.ctl, replicas: 2, command: []string{"/usr/bin/python3", "-c", dying},
		host: map[string]string{"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}, probe: object{"httpGet": object{"path": "/", "port": "http"}, "periodSeconds": 1},
	}
	up := c.deploy(t, d)
	up.pods.onStop = c.slow(t)
	up.ready(t)
	p := up.prove(t)
	f := p.find(t, "prestop-missing", mainContainer+".lifecycle.preStop")
	seconds, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(f.Want, "sleep: {seconds: "), "}"))
	if err != nil || seconds < 3 || seconds > 10 {
		t.Fatalf("kube-proxy is 1.5 s late, and it asks for %q (%v)", f.Want, err)
	}
	d.lifetime = object{"preStop": object{"sleep": object{"seconds": seconds}}}
	up.change(t, d)
	if p := up.prove(t); p.Lost != 0 {
		t.Errorf("with %s there are %d lost: %v", f.Want, p.Lost, p.Findings)
	}
}

// bad is a server in Python that stops badly in the way that its argument names.
const bad = `
import http.server, itertools, os, signal, sys, threading, time
mode, count = sys.argv[1], itertools.count(1)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        flaky = mode == "flaky" and self.path == "/" and next(count) % 100 == 0
        self.send_response(500 if flaky else 200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")
    def log_message(self, *_): pass
def end(code, text, after=0):
    def do():
        time.sleep(after)
        print(text, flush=True)
        os._exit(code)
    threading.Thread(target=do).start()
stop = {
    "slow": lambda *_: end(0, "drained", 9),
    "fails": lambda *_: end(1, "http: Server closed"),
    "ignores": lambda *_: print("not now", flush=True),
}.get(mode, lambda *_: end(0, "bye"))
signal.signal(signal.SIGTERM, stop)
if mode == "panics":
    end(2, "panic: out of luck", 50)
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
`

// TestProveBadPrograms: the finding is the true cause, which is how the containers ended, and
// no advice contradicts it.
func TestProveBadPrograms(t *testing.T) {
	full(t)
	c := onCluster(t)
	python := func(mode string) []string { return []string{"/usr/bin/python3", "-c", bad, mode} }
	for _, tt := range []struct {
		mode    string
		grace   int
		settle  int // so that the rollout lasts until a container has ended
		command []string
		rule    string
		path    string
		says    string
		never   []string // rules of findings
	}{
		{
			mode: "slow", grace: 4, rule: "grace-too-short", path: "spec.template.spec.terminationGracePeriodSeconds",
			says: "ended by itself after", never: []string{"stop-signal-ignored"},
		},
		{
			mode: "ignores", grace: 4, rule: "stop-signal-ignored",
			says: "not now", never: []string{"grace-too-short"},
		},
		{
			mode: "shell", grace: 4, command: append([]string{"/usr/bin/sh", "-c", `"$@"; true`, "sh"}, python("shell")...),
			rule: "stop-signal-ignored", path: mainContainer + ".command", never: []string{"grace-too-short"},
		},
		{
			mode: "panics", settle: 15, rule: "container-ended", says: "panic: out of luck", never: []string{"grace-too-short", "stop-signal-ignored"},
		},
		{
			mode: "fails", rule: "stop-failed", says: "http: Server closed", never: []string{"grace-too-short", "container-ended"},
		},
	} {
		t.Run(tt.mode, func(t *testing.T) {
			if tt.command == nil {
				tt.command = python(tt.mode)
			}
			d := c.deploy(t, deployment{
				name: "bad-" + tt.mode, image: c.ctl, replicas: 2, command: tt.command, grace: tt.grace, settle: tt.settle,
				host: map[string]string{"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}, probe: object{"httpGet": object{"path": "/", "port": "http"}, "periodSeconds": 1},
			})
			d.pods.onStop = c.slow(t)
			d.ready(t)
			p := d.prove(t)
			f := p.find(t, tt.rule, tt.path)
			if !strings.Contains(f.Reason, tt.says) {
				t.Errorf("it does not say %q: %s", tt.says, f.Reason)
			}
			for _, f := range p.Findings {
				if slices.Contains(tt.never, f.Rule) {
					t.Errorf("it blames %s: %s", f.Rule, f.Reason)
				}
			}
		})
	}
	// A program that fails now and then is refused before anything is touched, or its failures
	// are not those of its stops.
	t.Run("flaky", func(t *testing.T) {
		d := c.deploy(t, deployment{
			name: "bad-flaky", image: c.ctl, replicas: 2, command: python("flaky"),
			host: map[string]string{"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}, probe: object{"httpGet": object{"path": "/ready", "port": "http"}, "periodSeconds": 1},
		})
		d.ready(t)
		out, stderr, code := d.lifecyclectl(t, "prove", "deployment/"+d.name, "--yes", "-o", "json", "--timeout", "5m")
		if code != 1 {
			t.Fatalf("exit status %d\n%s", code, stderr)
		}
		if strings.Contains(stderr, "loses requests before anything was touched") {
			return
		}
		var p proof
		if err := json.Unmarshal(out, &p); err != nil {
			t.Fatalf("%v\n%s", err, stderr)
		}
		p.find(t, "unexplained", "")
		for _, f := range p.Findings {
			if f.Rule == "status" {
				t.Errorf("it blames the stops: %s", f.Reason)
			}
		}
	})
}

// TestProveOtherWorkloads proves a StatefulSet and a DaemonSet.
func TestProveOtherWorkloads(t *testing.T) {
	full(t)
	c := onCluster(t)
	for kind, change := range map[string]func(spec object){
		"StatefulSet": func(spec object) {
			delete(spec, "strategy")
			spec["serviceName"] = "proven-statefulset"
		},
		"DaemonSet": func(spec object) {
			delete(spec, "strategy")
			delete(spec, "replicas")
			spec["updateStrategy"] = object{"rollingUpdate": object{"maxSurge": 1, "maxUnavailable": 0}}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			name := "proven-" + strings.ToLower(kind)
			d := c.serviceOf(name, 2)
			if kind == "DaemonSet" { // on one node: no other pod serves while the one that is deleted starts anew
				d.args = append(d.args, "-lifecycle.drain-readiness=serving")
			}
			o := d.object()
			o["kind"] = kind
			change(o["spec"].(object))
			t.Cleanup(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				if _, err := c.kubectl(ctx, "delete", kind+",service", name, "--ignore-not-found", "--wait=false"); err != nil {
					t.Error(err)
				}
			})
			c.apply(t, o, service(name, object{"deployment": name}))
			c.must(t, "rollout", "status", strings.ToLower(kind)+"/"+name, "--timeout="+strconv.Itoa(int(patience/time.Second))+"s")
			awaitAnswer(t, c.nodePort(t, name))
			_, stderr, code := c.lifecyclectl(t, "prove", strings.ToLower(kind)+"/"+name, "--yes", "--timeout", "5m", "--post", "/work?note=prove")
			if kind == "StatefulSet" && code != 0 || kind == "DaemonSet" && code > 1 {
				t.Errorf("exit status %d\n%s", code, stderr)
			}
			c.noJobs(t)
		})
	}
}

// TestProveAWindowThatIsTooShort finds a value that is long enough for the window.
func TestProveAWindowThatIsTooShort(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := deployment{name: "hasty", image: c.app, replicas: 2, args: []string{"-accept-quiet=-1ns", "-drain-interval=1s"}}
	up := c.deploy(t, d)
	up.pods.onStop = c.slower(t, "4")
	up.ready(t)
	p := up.prove(t, "--post", "/work")
	f := p.find(t, "drain-window-too-short", "")
	want, err := time.ParseDuration(f.Want)
	// A busy machine is later still: 14 s were seen.
	if err != nil || want < 4*time.Second || want > 30*time.Second {
		t.Fatalf("kube-proxy is 4 s late, the window is 1 s, and it asks for %q (%v)", f.Want, err)
	}
	// On a busy machine kube-proxy may be later than 4 s the next time: then the second
	// answer names a longer window, and that is enough.
	for round := 1; ; round++ {
		d.args[1] = "-drain-interval=" + f.Want
		up.change(t, d)
		p := up.prove(t, "--post", "")
		if p.Lost == 0 {
			return
		}
		if round == 3 {
			t.Fatalf("with %s there are %d lost: %v", f.Want, p.Lost, p.Findings)
		}
		t.Logf("with %s there are %d lost", f.Want, p.Lost)
		before := want
		f = p.find(t, "drain-window-too-short", "")
		if want, err = time.ParseDuration(f.Want); err != nil || want <= before {
			t.Fatalf("a window of %v is too short, and it asks for %q (%v)", before, f.Want, err)
		}
	}
}

// change applies the deployment anew and waits until it has rolled.
func (d *deployed) change(t *testing.T, to deployment) {
	t.Helper()
	d.apply(t, to.object())
	d.rolledOut(t)
	d.settled(t)
	pause(t.Context(), 5*time.Second) // kube-proxy may be paused for the last of them
}

// TestProveRefuses tries bad input on a real cluster: prove names the object in
// each error, or prints that of kubectl, and touches nothing.
func TestProveRefuses(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, c.serviceOf("refused", 1)).ready(t)
	one := d.pods.only(t)
	c.apply(t, object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "weak"}})
	c.apply(t, service("nowhere", object{"deployment": "refused", "version": "none"}))
	for name, tt := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"no such deployment": {[]string{"deployment/nothing", "--yes"}, 3, []string{"kubectl -n " + c.namespace, "NotFound", "nothing"}},
		"not labelled":       {[]string{"deployment/refused"}, 2, []string{"lifecycle.pleme.io/prove=allowed", "--yes"}},
		"no such service":    {[]string{"deployment/refused", "--yes", "--service", "nothing"}, 3, []string{"service/nothing"}},
		"another service":    {[]string{"deployment/refused", "--yes", "--service", "nowhere"}, 2, []string{"service/nowhere does not select the pods of deployment/refused", "version=none"}},
		"no image": {
			[]string{"deployment/refused", "--yes", "--image", "e2e.local/nothing:1"},
			1,
			[]string{"image e2e.local/nothing:1 does not run as the load", "--image"},
		},
		"no stream":     {[]string{"deployment/refused", "--yes", "--stream", "/nothing"}, 1, []string{"service/refused port 80 does not answer", "/nothing", "404"}},
		"no permission": {[]string{"deployment/refused", "--yes", "--kubeconfig", c.weakUser(t)}, 5, []string{`cannot get resource "deployments"`}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"prove"}, tt.args...)
			_, stderr, code := c.lifecyclectl(t, args...)
			if code != tt.code {
				t.Errorf("exit status %d, want %d\n%s", code, tt.code, stderr)
			}
			for _, s := range tt.says {
				if !strings.Contains(stderr, s) {
					t.Errorf("it does not say %q:\n%s", s, stderr)
				}
			}
			c.noJobs(t)
		})
	}
	t.Run("an API server that hangs", func(t *testing.T) {
		var paused sync.WaitGroup
		defer paused.Wait()
		paused.Go(func() {
			if _, err := command(context.WithoutCancel(t.Context()), nil, c.script, "pause", "kube-apiserver", "25"); err != nil {
				t.Error(err)
			}
		})
		pause(t.Context(), time.Second)
		_, stderr, code := c.lifecyclectl(t, "prove", "deployment/refused", "--yes")
		// The words are kubectl's own, unless it hangs as well.
		if code != 6 || !strings.Contains(stderr, "Unable to connect to the server") && !strings.Contains(stderr, "the API server did") {
			t.Errorf("exit status %d, want 6\n%s", code, stderr)
		}
	})
	if now := d.pods.only(t); now.uid != one.uid {
		t.Errorf("pod %s was replaced by %s", one.name, now.name)
	}
}

// weakUser writes a kubectl configuration for a service account without any rights.
func (c *cluster) weakUser(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "weak")
	text, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	token := strings.TrimSpace(c.must(t, "create", "token", "weak"))
	run(t, "", "kubectl", "--kubeconfig", config, "config", "set-credentials", "weak", "--token", token)
	run(t, "", "kubectl", "--kubeconfig", config, "config", "set-context", "--current", "--user", "weak")
	return config
}

// TestProveEndsWell: Ctrl-C in the middle of a scale puts the replicas back and
// deletes the Job.
func TestProveEndsWell(t *testing.T) {
	full(t)
	c := onCluster(t)
	d := c.deploy(t, deployment{name: "broken-off", image: c.app, replicas: 2}).ready(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.binary, "prove", "deployment/"+d.name, "--yes", "--namespace", c.namespace, "--image", c.ctl)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "prove to scale", func() bool {
		return d.must(t, "get", "deployment", d.name, "--output", "jsonpath={.spec.replicas}") == "1"
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("%v, want exit status 130\n%s", err, stderr.String())
	}
	if n := d.must(t, "get", "deployment", d.name, "--output", "jsonpath={.spec.replicas}{.metadata.annotations.lifecycle\\.pleme\\.io/prove-replicas}"); n != "2" {
		t.Errorf("there are %s replicas, want 2", n)
	}
	c.noJobs(t)
}
