package vet

import (
	"cmp"
	"fmt"
	"net"
	"slices"
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

func (c *container) probes() {
	live, ready, start := c.spec.LivenessProbe, c.spec.ReadinessProbe, c.spec.StartupProbe
	if c.cfg.HealthAddr == lifecycle.HealthOff && !c.off(live, ready, start) {
		return
	}
	if ready == nil {
		c.fault("no-readiness", "the container has no readinessProbe",
			fmt.Sprintf("add one: httpGet /readyz on port %d, periodSeconds 1, failureThreshold 1%s", c.health, c.reach(nil)))
	}
	if live == nil {
		c.fault("no-liveness", "the container has no livenessProbe", fmt.Sprintf("add one: httpGet /livez on port %d%s", c.health, c.reach(nil)))
	}
	if live != nil && start == nil {
		reason := fmt.Sprintf("there is no startupProbe: a start that takes longer than initialDelaySeconds %d + %s is killed by the livenessProbe",
			live.InitialDelaySeconds, sum(live, sec(int64(live.InitialDelaySeconds))))
		c.fault("no-startup", reason,
			fmt.Sprintf("add one: httpGet /startupz on port %d, periodSeconds 1, failureThreshold as many seconds as a start may take%s", c.health, c.reach(nil)),
			"livenessProbe")
	}
	asksLivez := c.probe("livenessProbe", live)
	c.probe("readinessProbe", ready)
	c.probe("startupProbe", start)
	if ready != nil {
		c.drainIsNoticed(ready)
	}
	if live != nil && !asksLivez {
		c.drainIsSurvived(live)
	}
}

// sum says how long a probe fails until the kubelet acts, after this delay.
func sum(p *corev1.Probe, delay time.Duration) string {
	return fmt.Sprintf("periodSeconds %d × failureThreshold %d = %v", seconds(period(p)), failures(p), delay+noticed(p))
}

// drainIsNoticed checks that the cluster sees within the drain window that readiness is
// down.
func (c *container) drainIsNoticed(ready *corev1.Probe) {
	drain := on(c.cfg.DrainInterval)
	need := noticed(ready) + spread
	if c.cfg.DrainReadiness != lifecycle.ReadinessDown || c.isUnknown("DrainReadiness", "DrainInterval") || need <= drain {
		return
	}
	whole := int64((drain - spread) / time.Second) // seconds that are in the window
	fits := max(1, whole/int64(failures(ready)))
	fix := ""
	if sec(fits)*time.Duration(failures(ready))+spread <= drain {
		fix = fmt.Sprintf("set readinessProbe.periodSeconds to %d", fits)
	} else if drain >= 2*time.Second {
		fix = fmt.Sprintf("set readinessProbe.periodSeconds to 1 and failureThreshold to %d", max(1, whole))
	}
	longer := c.set(fmt.Sprintf("set lifecycle.drain_interval to %v", need), func(cfg *lifecycle.Config) { cfg.DrainInterval = need })
	if fix = or(fix, longer); fix == "" {
		fix = fmt.Sprintf("make the window longer than %v, and every grace with it", noticed(ready))
	}
	c.fault("drain-unnoticed",
		fmt.Sprintf("readiness is seen to be down after %s, endpoints take %v more, and drain_interval is %v", sum(ready, 0), spread, drain),
		fix, "readinessProbe")
}

// drainIsSurvived checks that a liveness probe, which does not ask /livez, passes for as
// long as a stop may take.
func (c *container) drainIsSurvived(live *corev1.Probe) {
	stop := on(c.cfg.DrainInterval) + c.cfg.ShutdownGrace
	if noticed(live) >= stop || c.isUnknown("DrainInterval", "ShutdownGrace") {
		return
	}
	takes := fmt.Sprintf("drain_interval %v + shutdown_grace %v = %v", on(c.cfg.DrainInterval), c.cfg.ShutdownGrace, stop)
	reason := fmt.Sprintf("the livenessProbe fails after %s, and a stop may take %s; it does not ask /livez, which passes until the end",
		sum(live, 0), takes)
	enough := (seconds(stop) + seconds(period(live)) - 1) / seconds(period(live))
	c.fault("liveness-kills-drain", reason,
		fmt.Sprintf("ask /livez on port %d%s, or set failureThreshold to %d", c.health, c.reach(live), enough), "livenessProbe")
}

// reach returns what else has to change for a probe to reach the planes. p is nil for a
// probe with the defaults of Kubernetes.
func (c *container) reach(p *corev1.Probe) (also string) {
	if p == nil {
		p = &corev1.Probe{}
	}
	if p.HTTPGet != nil && p.HTTPGet.Scheme == corev1.URISchemeHTTPS {
		also += ", scheme to HTTP"
	}
	if timeout(p) < c.cfg.ProbeTimeout {
		also += fmt.Sprintf(", timeoutSeconds to %d", seconds(c.cfg.ProbeTimeout))
	}
	if c.given.HealthAddr == lifecycle.HealthOff || c.loopback() && (p.HTTPGet == nil || p.HTTPGet.Host == "") {
		also += fmt.Sprintf(`, lifecycle.health_addr to ":%d"`, c.health)
	}
	return also
}

// turnOn is the rest of an advice that makes a probe ask a plane, when the health server is
// off: no other finding says so about a probe that asks something else.
func (c *container) turnOn(asks string) string {
	if c.given.HealthAddr == lifecycle.HealthOff && !isPlane(asks) {
		return fmt.Sprintf(", lifecycle.health_addr to %q", c.cfg.HealthAddr)
	}
	return ""
}

// loopback reports whether only the pod itself reaches the planes.
func (c *container) loopback() bool { return isLoopback(c.healthHost) }

func isLoopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// off reports whether a probe asks a plane of a service whose health server is off. The service
// serves the planes itself then (App.Handler), where that probe asks.
func (c *container) off(probes ...*corev1.Probe) bool {
	i := slices.IndexFunc(probes, func(p *corev1.Probe) bool {
		return p != nil && p.HTTPGet != nil && isPlane(p.HTTPGet.Path)
	})
	if i < 0 {
		return false
	}
	cfg := c.cfg
	cfg.HealthAddr = ":8081"
	if port, known := resolve(probes[i].HTTPGet.Port, c.spec); known {
		cfg.HealthAddr = fmt.Sprintf(":%d", port)
	}
	c.use(cfg)
	return true
}

// probe checks one probe and reports whether it asks the right plane.
func (c *container) probe(name string, p *corev1.Probe) (isRight bool) {
	if p == nil {
		return false
	}
	right := fmt.Sprintf("set path to %s and port to %d%s", plane[name], c.health, c.reach(p))
	if p.HTTPGet == nil {
		if name == "readinessProbe" && p.TCPSocket != nil {
			c.fault("readiness-not-readyz",
				"a tcpSocket probe passes as long as the listener is open, and it stays open during the whole drain window",
				"use httpGet: "+right, name, "tcpSocket")
		}
		if p.GRPC != nil && c.health > 0 && int(p.GRPC.Port) == c.health {
			c.fault("probe-scheme", "the probe asks by gRPC, and the service serves the planes by HTTP",
				fmt.Sprintf("use httpGet: %s", right), name, "grpc")
		}
		return false // exec, and grpc on another port: vet does not know what they ask
	}
	get := p.HTTPGet
	asks, _, _ := strings.Cut(get.Path, "?")
	if !strings.HasPrefix(asks, "/") {
		asks = "/" + asks
	}
	port, known := resolve(get.Port, c.spec)
	switch {
	case c.health == 0:
		return false // the port is chosen when the process starts
	case !known:
		add := ""
		if get.Port.IntValue() > 0 { // the name of a port has a letter
			right += " without quotes"
		} else if asks == plane[name] && c.reach(p) == "" {
			add = fmt.Sprintf("add {name: %s, containerPort: %d} to the container's ports", get.Port.StrVal, c.health)
		}
		c.fault("probe-port", fmt.Sprintf("port %q is not a port of the container %s", get.Port.StrVal, c.spec.Name), or(right, add), name, "httpGet", "port")
	case port != c.health:
		if isPlane(asks) || name == "readinessProbe" {
			reason := fmt.Sprintf("the %s asks port %d, and the planes are on %d (lifecycle.health_addr %q)", name, port, c.health, c.cfg.HealthAddr)
			c.fault("probe-port", reason, right, name, "httpGet", "port")
		}
		return false
	}
	c.probeReaches(name, p)
	return c.probeAsks(name, p, asks)
}

// probeReaches checks whether the kubelet gets an answer of the planes' port.
func (c *container) probeReaches(name string, p *corev1.Probe) {
	get := p.HTTPGet
	if isLoopback(get.Host) && !c.workload.pod.HostNetwork {
		c.fault("health-unreachable", fmt.Sprintf("host is %s: the kubelet asks the node itself, and not the pod", get.Host),
			"remove host: the kubelet then asks the pod's address", name, "httpGet", "host")
	}
	if get.Host == "" && c.loopback() {
		c.fault("health-unreachable", fmt.Sprintf("the service serves the planes on %s only, and the kubelet asks the pod's address", c.cfg.HealthAddr),
			fmt.Sprintf(`set lifecycle.health_addr to ":%d"`, c.health), name, "httpGet")
	}
	if get.Scheme == corev1.URISchemeHTTPS {
		c.fault("probe-scheme", "the probe asks by HTTPS, and the service serves the planes without TLS", "set scheme to HTTP", name, "httpGet", "scheme")
	}
	if timeout(p) < c.cfg.ProbeTimeout && !c.isUnknown("ProbeTimeout") {
		reason := fmt.Sprintf("the kubelet gives up after timeoutSeconds %d, and a plane may take lifecycle.probe_timeout, %v, to answer",
			seconds(timeout(p)), c.cfg.ProbeTimeout)
		fix := fmt.Sprintf("set timeoutSeconds to %d, or lifecycle.probe_timeout to %v", seconds(c.cfg.ProbeTimeout), timeout(p)-100*time.Millisecond)
		c.fault("probe-timeout", reason, fix, name, "timeoutSeconds")
	}
}

// probeAsks checks the path of a probe of the planes' port, and reports whether it is right.
func (c *container) probeAsks(name string, p *corev1.Probe, asks string) (isRight bool) {
	want := plane[name]
	first, _, _ := strings.Cut(strings.TrimPrefix(asks, "/"), "/")
	fault := func(rule, reason string) {
		c.fault(rule, reason, "set path to "+want+c.turnOn(asks), name, "httpGet", "path")
	}
	switch base := "/" + first; {
	case base == want:
		return true
	case !isPlane(base):
		fault("probe-path", fmt.Sprintf("there is no %s on port %d: it answers 404, and the probe never passes", asks, c.health))
	case name == "livenessProbe" && base == "/healthz":
		fault("liveness-alias", "liveness asks /healthz, which is /livez by another name")
		return true
	case name == "livenessProbe":
		fault("liveness-depends", fmt.Sprintf("liveness asks %s: a dependency that is down restarts every pod, "+
			"and a drain, which takes readiness down, is killed after %v", asks, noticed(p)))
	case name == "readinessProbe":
		fault("readiness-not-readyz", fmt.Sprintf("readiness asks %s, which stays up while the process drains", asks))
	default:
		fault("startup-not-startupz", fmt.Sprintf("the startup probe asks %s", asks))
	}
	return false
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
