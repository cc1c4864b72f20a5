package vet

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// spread is the time that endpoints take to reach every kube-proxy after the
// kubelet has seen readiness go down. On a cluster of hundreds of nodes it is about
// a second.
const spread = time.Second

// The defaults of core/v1 Probe.
func period(p *corev1.Probe) time.Duration {
	return sec(int64(cmp.Or(p.PeriodSeconds, 10)))
}
func failures(p *corev1.Probe) int32        { return cmp.Or(p.FailureThreshold, 3) }
func timeout(p *corev1.Probe) time.Duration { return sec(int64(cmp.Or(p.TimeoutSeconds, 1))) }
func noticed(p *corev1.Probe) time.Duration { return period(p) * time.Duration(failures(p)) }

// plane is the path that each probe should ask.
var plane = map[string]string{"livenessProbe": "/livez", "readinessProbe": "/readyz", "startupProbe": "/startupz"}

func (c container) probes() {
	live, ready, start := c.c.LivenessProbe, c.c.ReadinessProbe, c.c.StartupProbe
	if c.cfg.HealthAddr == lifecycle.HealthOff {
		for name, p := range map[string]*corev1.Probe{"livenessProbe": live, "readinessProbe": ready, "startupProbe": start} {
			if p != nil && p.HTTPGet != nil && isPlane(p.HTTPGet.Path) {
				c.fault("health-unreachable", "lifecycle.health_addr is off: nothing answers the probe", `set lifecycle.health_addr to ":8081"`, name)
			}
		}
		return
	}
	if ready == nil {
		c.fault("no-readiness", "the container has no readinessProbe", fmt.Sprintf("add one: httpGet /readyz on port %d, periodSeconds 1, failureThreshold 1", c.health))
	}
	if live == nil {
		c.fault("no-liveness", "the container has no livenessProbe", fmt.Sprintf("add one: httpGet /livez on port %d", c.health))
	}
	if live != nil && start == nil {
		c.fault("no-startup", fmt.Sprintf("there is no startupProbe: a start that takes longer than initialDelaySeconds %d + periodSeconds %d × failureThreshold %d = %v is killed by the livenessProbe",
			live.InitialDelaySeconds, seconds(period(live)), failures(live), sec(int64(live.InitialDelaySeconds))+noticed(live)),
			fmt.Sprintf("add one: httpGet /startupz on port %d, periodSeconds 1, failureThreshold as many seconds as a start may take", c.health), "livenessProbe")
	}
	ours := c.probe("livenessProbe", live)
	c.probe("readinessProbe", ready)
	c.probe("startupProbe", start)

	drain := on(c.cfg.DrainInterval)
	if ready != nil && c.cfg.DrainReadiness == lifecycle.ReadinessDown && noticed(ready)+spread > drain {
		fits := max(1, seconds(drain-spread)/int64(failures(ready)))
		fix := fmt.Sprintf("set lifecycle.drain_interval to %v or more", noticed(ready)+spread)
		if sec(fits)*time.Duration(failures(ready))+spread <= drain {
			fix = fmt.Sprintf("set readinessProbe.periodSeconds to %d, or %s", fits, fix)
		} else if drain >= 2*time.Second {
			fix = fmt.Sprintf("set readinessProbe.periodSeconds to 1 and failureThreshold to %d, or %s", seconds(drain)-1, fix)
		}
		c.fault("drain-unnoticed", fmt.Sprintf("readiness is seen to be down after periodSeconds %d × failureThreshold %d = %v, endpoints take %v more, and drain_interval is %v",
			seconds(period(ready)), failures(ready), noticed(ready), spread, drain), fix, "readinessProbe")
	}
	if stop := drain + c.cfg.ShutdownGrace; live != nil && !ours && noticed(live) < stop {
		c.fault("liveness-kills-drain", fmt.Sprintf("the livenessProbe fails after periodSeconds %d × failureThreshold %d = %v, and a stop may take drain_interval %v + shutdown_grace %v = %v; it does not ask /livez, which passes until the end",
			seconds(period(live)), failures(live), noticed(live), drain, c.cfg.ShutdownGrace, stop),
			fmt.Sprintf("ask /livez on port %d, or set failureThreshold to %d", c.health, (seconds(stop)+seconds(period(live))-1)/seconds(period(live))), "livenessProbe")
	}
}

// probe checks one probe and reports whether it asks the right plane.
func (c container) probe(name string, p *corev1.Probe) (ours bool) {
	if p == nil {
		return false
	}
	want := plane[name]
	right := fmt.Sprintf("set path to %s and port to %d", want, c.health)
	if p.HTTPGet == nil {
		if name == "readinessProbe" && p.TCPSocket != nil {
			c.fault("readiness-not-readyz", "a tcpSocket probe passes as long as the listener is open, and it stays open during the whole drain window", "use httpGet: "+right, name, "tcpSocket")
		}
		return false // exec and grpc: vet does not know what they ask
	}
	get := p.HTTPGet
	asks, _, _ := strings.Cut(get.Path, "?")
	if !strings.HasPrefix(asks, "/") {
		asks = "/" + asks
	}
	port, known := resolve(get.Port, c.c)
	switch {
	case c.health == 0:
		return false // the port is chosen when the process starts
	case !known:
		c.fault("probe-port", fmt.Sprintf("port %q is not a port of the container %s", get.Port.StrVal, c.c.Name),
			fmt.Sprintf("add {name: %s, containerPort: %d} to the container's ports", get.Port.StrVal, c.health), name, "httpGet", "port")
		return false
	case port != c.health:
		c.elsewhere(name, asks, port, right)
		return false
	}
	if host := net.ParseIP(c.healthHost); get.Host == "" && (host.IsLoopback() || c.healthHost == "localhost") {
		c.fault("health-unreachable", fmt.Sprintf("the service serves the planes on %s only, and the kubelet asks the pod's address", c.cfg.HealthAddr),
			fmt.Sprintf(`set lifecycle.health_addr to ":%d"`, c.health), name, "httpGet")
	}
	if get.Scheme == corev1.URISchemeHTTPS {
		c.fault("probe-scheme", "the probe asks by HTTPS, and the service serves the planes without TLS", "set scheme to HTTP", name, "httpGet", "scheme")
	}
	if timeout(p) < c.cfg.ProbeTimeout {
		c.fault("probe-timeout", fmt.Sprintf("the kubelet gives up after timeoutSeconds %d, and a plane may take lifecycle.probe_timeout, %v, to answer", seconds(timeout(p)), c.cfg.ProbeTimeout),
			fmt.Sprintf("set timeoutSeconds to %d, or lifecycle.probe_timeout below %v", seconds(c.cfg.ProbeTimeout), timeout(p)), name, "timeoutSeconds")
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(asks, "/"), "/")
	switch base := "/" + first; {
	case base == want:
		return true
	case !isPlane(base):
		c.fault("probe-path", fmt.Sprintf("there is no %s on port %d: it answers 404, and the probe never passes", asks, port), "set path to "+want, name, "httpGet", "path")
	case name == "livenessProbe" && base == "/healthz":
		c.fault("liveness-alias", "liveness asks /healthz, which is /livez by another name", "set path to /livez", name, "httpGet", "path")
		return true
	case name == "livenessProbe":
		c.fault("liveness-depends", fmt.Sprintf("liveness asks %s: a dependency that is down restarts every pod, and a drain, which takes readiness down, is killed after %v", asks, noticed(p)),
			"set path to /livez", name, "httpGet", "path")
	case name == "readinessProbe":
		c.fault("readiness-not-readyz", fmt.Sprintf("readiness asks %s, which stays up while the process drains", asks), "set path to /readyz", name, "httpGet", "path")
	default:
		c.fault("startup-not-startupz", fmt.Sprintf("the startup probe asks %s", asks), "set path to /startupz", name, "httpGet", "path")
	}
	return false
}

// elsewhere checks a probe that asks another port than that of the planes.
func (c container) elsewhere(name, asks string, port int, right string) {
	if isPlane(asks) || name == "readinessProbe" {
		c.fault("probe-port", fmt.Sprintf("the %s asks port %d, and the planes are on %d (lifecycle.health_addr %q)", name, port, c.health, c.cfg.HealthAddr),
			right+fmt.Sprintf(`, or lifecycle.health_addr to ":%d"`, port), name, "httpGet", "port")
	}
}

func isPlane(path string) bool {
	switch path, _, _ = strings.Cut(path, "?"); path {
	case "/livez", "/readyz", "/startupz", "/healthz":
		return true
	}
	return false
}

// resolve returns the number of a port that may be given by name.
func resolve(port intstr.IntOrString, c *corev1.Container) (int, bool) {
	if port.Type == intstr.Int {
		return port.IntValue(), true
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), true
		}
	}
	return 0, false
}
