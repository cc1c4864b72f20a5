package prove

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// asked runs a proof of deployment/web against the fake. The user says yes.
func asked(ctx context.Context, change func(*Options)) (steps []string, err error) {
	o := Options{
		Target: "deployment/web", Namespace: "shop", Image: "ctl:1", Get: "/",
		Ask: func(string) error { return nil }, Now: func(string) {}, Step: func(s string) { steps = append(steps, s) },
	}
	if change != nil {
		change(&o)
	}
	_, err = Run(ctx, o)
	return steps, err
}

// A proof that cannot be made says which object lacks what, and changes nothing in the
// cluster.
func TestRefusals(t *testing.T) {
	const deployments, services = "get-deployments.apps", "get-services"
	for name, tt := range map[string]struct {
		with   func(*fake)
		opts   func(*Options)
		status int
		says   []string
	}{
		"another kind": {nil, func(o *Options) { o.Target = "replicaset/db" }, cli.ExitUsage, []string{`"replicaset/db" is not deployment/NAME, statefulset/NAME or daemonset/NAME`}},
		"on delete": {func(f *fake) {
			f.set("get-statefulsets.apps", strings.Replace(webDeployment, `"replicas": 2, "selector"`, `"replicas": 2, "updateStrategy": {"type": "OnDelete"}, "selector"`, 1))
		}, func(o *Options) { o.Target = "sts/web" }, cli.ExitUsage, []string{"statefulset/web would not replace all of its pods"}},
		"a partition": {func(f *fake) {
			f.set("get-statefulsets.apps", strings.Replace(webDeployment, `"replicas": 2, "selector"`, `"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}, "selector"`, 1))
		}, func(o *Options) { o.Target = "statefulset/web" }, cli.ExitUsage, []string{"or has a partition"}},
		"no node": {
			func(f *fake) { f.set("get-daemonsets.apps", webDeployment) },
			func(o *Options) { o.Target = "daemonset/web" },
			cli.ExitUsage,
			[]string{"daemonset/web has 0 replicas"},
		},
		"no name":    {nil, func(o *Options) { o.Target = "deployment/" }, cli.ExitUsage, []string{"not deployment/NAME"}},
		"no image":   {nil, func(o *Options) { o.Image = "" }, cli.ExitUsage, []string{"no image is given", "--image"}},
		"no JSON":    {func(f *fake) { f.set(deployments, "<html>") }, nil, cli.ExitFindings, []string{"kubectl get deployments.apps web", "invalid character"}},
		"no service": {func(f *fake) { f.set(services, `{"items": []}`) }, nil, cli.ExitUsage, []string{"no Service", "deployment/web", "app=web"}},
		"two services": {func(f *fake) {
			f.set(services, `{"items": [`+webService+","+strings.Replace(webService, `"web"`, `"www"`, 1)+`]}`)
		}, nil, cli.ExitUsage, []string{"2 Services select the pods of deployment/web", "--service web, or www"}},
		"another service":    {func(f *fake) { f.change(services, `"app": "web"`, `"app": "db"`) }, func(o *Options) { o.Service = "web" }, cli.ExitUsage, []string{"service/web does not select the pods of deployment/web", "app=db"}},
		"an unknown service": {nil, func(o *Options) { o.Service = "wep" }, cli.ExitNotFound, []string{"there is no service/wep"}},
		"no selector": {
			func(f *fake) { f.change(services, `"app": "web"`, "") },
			func(o *Options) { o.Service = "web" },
			cli.ExitUsage,
			[]string{"its spec.selector is <none>"},
		},
		"a headless service": {func(f *fake) { f.change(services, "10.0.0.1", "None") }, nil, cli.ExitUsage, []string{"service/web has no cluster IP"}},
		"several ports": {func(f *fake) {
			f.change(services, `"ports": [`, `"ports": [{"port": 9090, "name": "grpc"}, {"port": 9091, "name": "metrics"}, `)
			f.change(services, `"port": 80,`, `"port": 81,`)
		}, nil, cli.ExitUsage, []string{"service/web has 3 ports", "--port", "9090 grpc"}},
		"an unknown port": {nil, func(o *Options) { o.Port = "http" }, cli.ExitUsage, []string{"service/web has no TCP port http", "80"}},
		"no probe":        {func(f *fake) { f.change(deployments, `, "readinessProbe": {"periodSeconds": 1}`, "") }, nil, cli.ExitUsage, []string{"container main has no readinessProbe", "add spec.template.spec.containers[0].readinessProbe"}},
		"paused":          {func(f *fake) { f.change(deployments, `"replicas": 2, "selector"`, `"paused": true, "selector"`) }, nil, cli.ExitUsage, []string{"deployment/web is paused", "kubectl rollout resume"}},
		"no replicas": {
			func(f *fake) { f.change(deployments, `"replicas": 2, "selector"`, `"replicas": 0, "selector"`) },
			nil,
			cli.ExitUsage,
			[]string{"deployment/web has 0 replicas"},
		},
		"not available": {
			func(f *fake) { f.change(deployments, `"availableReplicas": 2`, `"availableReplicas": 1`) },
			nil,
			cli.ExitUsage,
			[]string{"deployment/web has 1 of 2 replicas available"},
		},
		"forbidden": {
			func(f *fake) { f.set("error", `Error from server (Forbidden): deployments.apps "web" is forbidden`) },
			nil,
			cli.ExitDenied,
			[]string{`deployments.apps "web" is forbidden`},
		},
		"not signed in": {
			func(f *fake) { f.set("error", "error: You must be logged in to the server (Unauthorized)") },
			nil,
			cli.ExitDenied,
			[]string{"You must be logged in"},
		},
		"an API server away": {func(f *fake) {
			f.set("error", "The connection to the server 10.0.0.9:6443 was refused - did you specify the right host or port?")
		}, nil, cli.ExitUnreachable, []string{"deployments.apps web: The connection to the server 10.0.0.9:6443 was refused"}},
		"a plugin that is missing": {func(f *fake) {
			f.set("error", "E1127 memcache.go:265] couldn't get current server API group list\n"+
				"Unable to connect to the server: getting credentials: exec: fork/exec /app: no such file or directory\n\n"+
				"To learn more about this feature, consult the documentation available at:\n      https://kubernetes.io/docs/\n")
		}, nil, cli.ExitDenied, []string{"getting credentials", "/app: no such file"}},
		"an API server hangs": {
			func(f *fake) { f.set("hang", "") },
			func(o *Options) { o.callIn = 500 * time.Millisecond },
			cli.ExitUnreachable,
			[]string{"the API server did not answer within 500ms: kubectl -n shop get"},
		},
		"not allowed": {func(f *fake) { f.change(deployments, "allowed", "no") }, func(o *Options) { o.Ask = func(what string) error { return errors.New(what) } }, -1, []string{"deployment/web in namespace shop does not have the label lifecycle.pleme.io/prove=allowed", "service/web"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			if tt.with != nil {
				tt.with(f)
			}
			_, err := asked(t.Context(), tt.opts)
			if err == nil {
				t.Fatal("it was not refused")
			}
			text := err.Error()
			var e *cli.Failure
			if errors.As(err, &e) {
				text += "\n" + strings.Join(e.Hints, "\n")
			} else {
				e = &cli.Failure{Status: -1, Err: err}
			}
			if e.Status != tt.status {
				t.Errorf("exit status %d, want %d", e.Status, tt.status)
			}
			for _, s := range tt.says {
				if !strings.Contains(text, s) {
					t.Errorf("it does not say %q:\n%s", s, text)
				}
			}
			if calls := f.calls(); strings.Contains(calls, "patch ") || strings.Contains(calls, "delete ") {
				t.Errorf("it touched the cluster:\n%s", calls)
			}
		})
	}
}

// A proof that takes too long names the namespace, also when the user gave none.
func TestTimeoutNamesTheNamespace(t *testing.T) {
	f := newFake(t)
	f.set("hang", "")
	_, err := asked(t.Context(), func(o *Options) { o.Namespace, o.Timeout = "", 100*time.Millisecond })
	var e *cli.Failure
	if !errors.As(err, &e) || len(e.Hints) != 1 || !strings.Contains(e.Hints[0], "kubectl -n team describe deployment/web") {
		t.Errorf("%v, with the hints of %+v", err, e)
	}
}

func TestNoDeployment(t *testing.T) {
	f := newFake(t)
	f.remove("get-deployments.apps")
	_, err := asked(t.Context(), func(o *Options) { o.Target = "deploy/web" })
	var e *cli.Failure
	if !errors.As(err, &e) || e.Status != cli.ExitNotFound || !strings.Contains(e.Error(), "kubectl -n shop get") {
		t.Errorf("%v", err)
	}
}

func TestNoKubectl(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := asked(t.Context(), nil)
	var e *cli.Failure
	if !errors.As(err, &e) || e.Status != cli.ExitUsage || !strings.Contains(e.Error(), "no kubectl in PATH") {
		t.Errorf("%v", err)
	}
}

// From the moment at which the Job may exist, every end of the proof deletes it.
func TestTheJobIsDeleted(t *testing.T) {
	waiting := func(reason string) string {
		return `{"items": [{"metadata": {"name": "load-1"}, "status": {"containerStatuses": [{"state": {"waiting": {"reason": "` + reason + `", "message": "back-off"}}}]}}]}`
	}
	for name, tt := range map[string]struct {
		with func(*fake)
		says []string
	}{
		"the image cannot be pulled": {
			func(f *fake) { f.set("get-pods", waiting("ImagePullBackOff")) },
			[]string{"image ctl:1 does not run as the load: ImagePullBackOff: back-off", "--image"},
		},
		"the image cannot run": {
			func(f *fake) { f.set("get-pods", waiting("RunContainerError")) },
			[]string{"image ctl:1 does not run as the load: RunContainerError", "entry point"},
		},
		"it is another program": {func(f *fake) {
			f.set("get-pods", `{"items": [{"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]}}]}`)
		}, []string{"image ctl:1 does not run as the load: exit status 2, Error"}},
		"it cannot be executed": {func(f *fake) {
			f.set("get-pods", `{"items": [{"status": {"containerStatuses": [{"state": {"terminated": {
				"exitCode": 255, "reason": "Error", "message": "exec /app: no such file or directory"
			}}}]}}]}`)
		}, []string{"does not run as the load: exit status 255, Error exec /app: no such file"}},
		"it prints something else": {func(f *fake) {
			f.set("get-pods", `{"items": [{"metadata": {"name": "load-1"}, "status": {"containerStatuses": [{"state": {"running": {}}}]}}]}`)
			f.set("logs", "exec /app: no such file or directory\n")
		}, []string{"the load does not report. It printed: exec /app: no such file or directory", "--image"}},
		"the Job is refused": {func(f *fake) { f.set("create-error", `Error from server (Forbidden): exceeded quota: jobs`) }, []string{"exceeded quota"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			tt.with(f)
			_, err := asked(t.Context(), nil)
			var e *cli.Failure
			if !errors.As(err, &e) {
				t.Fatalf("%v, want an *cli.Failure", err)
			}
			for _, s := range tt.says {
				if text := e.Error() + "\n" + strings.Join(e.Hints, "\n"); !strings.Contains(text, s) {
					t.Errorf("it does not say %q:\n%s", s, text)
				}
			}
			f.wantDeleted()
		})
	}
	t.Run("Ctrl-C", func(t *testing.T) {
		f := newFake(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stop := func(o *Options) {
			o.Step = func(string) { cancel() } // the Job is about to be made
		}
		if _, err := asked(ctx, stop); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		f.wantDeleted()
	})
}

// A proof that cannot delete its Job says so, with the command that does.
func TestJobThatCannotBeDeletedIsNamed(t *testing.T) {
	f := newFake(t)
	var said []string
	_, err := asked(t.Context(), func(o *Options) {
		o.Step = func(s string) {
			said = append(said, s)
			f.set("error", "The connection to the server 10.0.0.9:6443 was refused")
		}
	})
	var e *cli.Failure
	if !errors.As(err, &e) || e.Status != cli.ExitUnreachable {
		t.Errorf("%v", err)
	}
	if last := said[len(said)-1]; !strings.Contains(last, "is still there") || !strings.Contains(last, "kubectl -n shop delete job lifecyclectl-prove-") {
		t.Errorf("it says %q", said)
	}
}

func (f *fake) wantDeleted() {
	f.t.Helper()
	if calls := f.calls(); !strings.Contains(calls, "delete job lifecyclectl-prove-") {
		f.t.Errorf("the Job was not deleted:\n%s", calls)
	}
}
