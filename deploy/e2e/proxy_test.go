package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// haproxy is a proxy that speaks HTTP, as those of meshes do. It keeps the connections of its
// clients, so the goodbye of the service ends at the proxy: it says goodbye itself while the
// service is not ready.
const haproxy = `
defaults
  mode http
  timeout connect 2s
  timeout client 2m
  timeout server 2m
frontend clients
  bind :8082
  http-after-response set-header connection close unless { nbsrv(ready) gt 0 }
  default_backend service
backend service
  server service 127.0.0.1:8080
backend ready
  option httpchk GET /readyz
  server service 127.0.0.1:8081 check inter 500ms fall 1 rise 1
`

// behindProxy puts HAProxy of this machine before examples/service: as a native sidecar, or as
// an ordinary container.
func (c *cluster) behindProxy(t *testing.T, name string, native bool) deployment {
	t.Helper()
	c.apply(t, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "proxy"}, "data": object{"haproxy.cfg": haproxy}})
	d := c.serviceOf(name, 3)
	d.change = func(pod object) {
		main := pod["containers"].([]object)[0]
		main["ports"] = []object{{"name": "service", "containerPort": 8080}, {"name": "health", "containerPort": 8081}}
		proxy := object{
			"name": "proxy", "image": c.ctl, "imagePullPolicy": "Never",
			"command":      []string{"/usr/sbin/haproxy", "-W", "-db", "-f", "/etc/proxy/haproxy.cfg"}, // without -W process 1 ignores SIGTERM
			"ports":        []object{{"name": "http", "containerPort": 8082}},
			"startupProbe": object{"tcpSocket": object{"port": 8082}, "periodSeconds": 1, "failureThreshold": 60},
			"volumeMounts": []object{{"name": "proxy", "mountPath": "/etc/proxy"}},
		}
		volumes := append(pod["volumes"].([]object), object{"name": "proxy", "configMap": object{"name": "proxy"}})
		for name, at := range map[string]string{"usr": "/usr", "lib": "/lib", "lib64": "/lib64"} {
			volumes = append(volumes, object{"name": name, "hostPath": object{"path": strings.Replace(at, "/lib", "/usr/lib", 1), "type": "Directory"}})
			proxy["volumeMounts"] = append(proxy["volumeMounts"].([]object), object{"name": name, "mountPath": at, "readOnly": true})
		}
		pod["volumes"] = volumes
		if native {
			proxy["restartPolicy"] = "Always"
			pod["initContainers"] = []object{proxy}
		} else {
			pod["containers"] = append(pod["containers"].([]object), proxy)
		}
	}
	return d
}

// TestProxyBesideTheService rolls a service behind a proxy in its pod, under load. As a native
// sidecar the proxy outlives the service, and no request is lost. As an ordinary container,
// the control, it ends at SIGTERM while the service drains. vet says which is which.
func TestProxyBesideTheService(t *testing.T) {
	full(t)
	c := onCluster(t)
	if _, err := os.Stat("/usr/sbin/haproxy"); err != nil {
		t.Skip("needs haproxy on this machine: deploy/e2e/run installs it")
	}
	for name, native := range map[string]bool{"native": true, "ordinary": false} {
		t.Run(name, func(t *testing.T) {
			d := c.behindProxy(t, "proxy-"+name, native)
			text, err := json.Marshal(d.object())
			if err != nil {
				t.Fatal(err)
			}
			vet := exec.CommandContext(t.Context(), c.binary, "vet", "-")
			vet.Stdin = bytes.NewReader(text)
			said, _ := vet.CombinedOutput() // it exits with 1 for any finding
			if isFound := strings.Contains(string(said), "sidecar-stops-first"); isFound == native {
				t.Errorf("vet says\n%s", said)
			}
			up := c.deploy(t, d)
			up.pods.onStop = c.slow(t)
			up.ready(t)
			load := up.load(t, keepAlive, newConns)
			defer load.stop()
			pause(t.Context(), 3*time.Second)
			for range 2 {
				up.restart(t)
			}
			pause(t.Context(), 2*time.Second)
			ledgers := load.stop()
			if native {
				mustLoseNothing(t, up.pods.stops(), ledgers...)
				return
			}
			lost := 0
			for _, l := range ledgers {
				n, sent := l.lost()
				lost += n
				t.Logf("%s lost %d of %d", l.kind, n, sent)
			}
			if lost == 0 {
				t.Error("no request was lost: the clients cannot tell")
			}
		})
	}
}
