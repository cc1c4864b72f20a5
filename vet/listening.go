package vet

import (
	"cmp"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/run/runconfig"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// listening is where a container of lifecycle-run takes requests, as far as the manifest tells.
type listening struct {
	ports   []int  // that clients outside of the pod reach
	said    string // what the manifest says
	proxied int    // the program's own port behind the proxy, 0 without one
}

// listener is an address on which the manifest tells a program to listen.
type listener struct {
	host string
	port int
	said string // the flag or the variable
	at   place
}

// isReachable reports whether clients outside of the pod reach the address.
func (l listener) isReachable() bool { return !isLoopback(l.host) }

// parseListener reads PORT, HOST:PORT or tcp://HOST:PORT.
func parseListener(text string) (l listener, ok bool) {
	text = strings.TrimPrefix(text, "tcp://")
	port := text
	if strings.Contains(text, ":") {
		var err error
		if l.host, port, err = net.SplitHostPort(text); err != nil {
			return l, false
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	l.port = int(n)
	return l, err == nil && n > 0
}

// addressFlags are the flags by which common servers get their address, and addressVariables
// the variables: those of gunicorn, hypercorn, uvicorn, puma and Spring, and the convention of
// most platforms. -b is an address for few programs only.
var (
	addressFlags     = []string{"bind", "port", "server.port", "Dserver.port"}
	addressVariables = []string{"PORT", "SERVER_PORT"}
	bindersByB       = []string{"gunicorn", "hypercorn", "puma"}
)

// toldListeners returns the addresses on which the manifest tells a program to listen, and the
// ports of other flags and variables, such as --grpc-port, on which it may listen, too. It is
// not sure when an address is not known, or when a script has several commands: a flag may be
// of another program than the one that serves.
func toldListeners(program []word, vars []variable) (told []listener, others []int, isSure bool) {
	isSure = true
	add := func(said, value, unknown string, at place) {
		l, ok := parseListener(value)
		l.said, l.at = said, at
		if ok && unknown == "" {
			told = append(told, l)
		} else {
			isSure = false
		}
	}
	other := func(value string) {
		if l, ok := parseListener(value); ok {
			others = append(others, l.port)
		}
	}
	var words []word
	flags := addressFlags
	for _, w := range program {
		if strings.ContainsAny(w.text, ";&|\n") {
			isSure = false
		}
		for _, text := range strings.Fields(w.text) { // a word may be a script
			words = append(words, word{text, w.place, w.unknown})
			if slices.Contains(bindersByB, path.Base(text)) {
				flags = append(slices.Clone(addressFlags), "b")
			}
		}
	}
	for i, w := range words {
		name, value, hasValue := flagOf(w.text)
		isAddress := slices.Contains(flags, name)
		if !isAddress && !strings.HasSuffix(strings.ToLower(name), "port") {
			continue
		}
		if !hasValue && i+1 < len(words) {
			value, w.unknown = words[i+1].text, words[i+1].unknown
		}
		if !isAddress {
			other(value)
			continue
		}
		dashes := w.text[:strings.Index(w.text, name)]
		add(dashes+name+" "+value, value, w.unknown, w.place)
	}
	for _, v := range vars {
		switch {
		case slices.Contains(addressVariables, v.name):
			add(v.name+"="+v.value, v.value, v.unknown, v.place)
		case strings.HasSuffix(v.name, "PORT"):
			other(v.value)
		}
	}
	return told, others, isSure
}

// readListening finds where a container of lifecycle-run takes requests. A proxy that sends
// them to another port than the program's is a delayed finding.
func (c *container) readListening(cfg runconfig.Config, program []word, vars []variable) {
	told, others, isSure := toldListeners(program, vars)
	if cfg.Proxy != "" {
		to, _ := runconfig.ParseProxy(cfg.Proxy) // validated by Load
		proxied, _ := strconv.Atoi(to.Port())
		isTold := slices.Contains(others, proxied) || slices.ContainsFunc(told, func(l listener) bool { return l.port == proxied })
		if isSure && len(told) > 0 && !isTold {
			reason := fmt.Sprintf("the proxy sends requests to %s, and the program gets %s: each is answered with 502", cfg.Proxy, told[0].said)
			c.delay(told[0].at, "wrong-port", reason,
				fmt.Sprintf("set proxy to http://127.0.0.1:%d, or let the program listen on port %d", told[0].port, proxied))
		}
		addr := cmp.Or(cfg.Addr, runconfig.DefaultAddr)
		l, ok := parseListener(addr)
		if !ok {
			return
		}
		c.listening = &listening{said: fmt.Sprintf("the proxy listens on %s (addr)", addr), proxied: proxied}
		if l.isReachable() {
			c.listening.ports = []int{l.port}
		}
		return
	}
	for _, text := range cfg.Listen {
		l, ok := parseListener(text)
		l.said = "--listen " + text
		told = append(told, l)
		isSure = isSure && ok
	}
	if len(told) == 0 || !isSure {
		return
	}
	found := &listening{said: "the program gets " + told[0].said}
	for _, l := range told {
		if l.isReachable() {
			found.ports = append(found.ports, l.port)
		}
	}
	for _, text := range slices.Concat(cfg.Ready, cfg.Live) { // the pod is ready when these answer
		check, _ := runconfig.ParseCheck(text) // validated by Load
		isTold := slices.ContainsFunc(told, func(l listener) bool { return l.port == check.Port() })
		if check.Port() > 0 && !isTold {
			found.ports = append(found.ports, check.Port())
		}
	}
	found.ports = append(found.ports, others...)
	c.listening = found
}

// servicePorts checks whether the Services send requests to a port on which lifecycle-run or its
// program listens. A further Service, such as one for a scrape, may send to another port of the
// program.
func (c *container) servicePorts() {
	if c.listening == nil {
		return
	}
	wrong, first := service{}, -1
	for _, s := range c.services {
		if !sameNamespace(s.object, c.workload.object) || !s.selects(c.workload) {
			continue
		}
		for i, p := range s.spec.Ports {
			port, isOwn := c.target(p)
			switch {
			case !isOwn || port == c.health:
			case slices.Contains(c.listening.ports, port):
				return
			case first < 0:
				wrong, first = s, i
			}
		}
	}
	if first >= 0 {
		c.wrongPort(wrong, first)
	}
}

// wrongPort adds the finding about port i of a Service.
func (c *container) wrongPort(s service, i int) {
	p := s.spec.Ports[i]
	port, _ := c.target(p)
	what := "targetPort"
	if p.TargetPort.Type == intstr.String {
		what = "the containerPort of " + p.TargetPort.StrVal
	}
	reason := fmt.Sprintf("%s sends requests to port %d of %s, and %s: each is refused", s, port, c.spec.Name, c.listening.said)
	fix, alternative := "", fmt.Sprintf("let the program listen on :%d", port)
	if c.listening.proxied > 0 {
		alternative = fmt.Sprintf("set addr of lifecycle-run to \":%d\"", port)
	}
	if len(c.listening.ports) > 0 {
		fix = fmt.Sprintf("set %s to %d", what, c.listening.ports[0])
	}
	if port == c.listening.proxied {
		reason = fmt.Sprintf("%s sends requests to port %d of %s, past the proxy: %s", s, port, c.spec.Name, c.listening.said)
		alternative = ""
	}
	c.at(s.object, fieldPath{"spec", "ports", i, "targetPort"}, "wrong-port", reason, or(fix, alternative))
}

// target returns the port of the container to which a Service sends, and whether it is this
// container's: the others of a pod have the same address.
func (c *container) target(p corev1.ServicePort) (port int, isOwn bool) {
	if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
		return 0, false
	}
	to := p.TargetPort
	if to == (intstr.IntOrString{}) {
		to = intstr.FromInt32(p.Port)
	}
	port, known := resolve(to, c.spec)
	hasSidecar := slices.ContainsFunc(c.workload.pod.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) })
	isAlone := len(c.workload.pod.Containers) == 1 && !hasSidecar
	isDeclared := slices.ContainsFunc(c.spec.Ports, func(p corev1.ContainerPort) bool { return int(p.ContainerPort) == port })
	return port, known && (isAlone || isDeclared)
}
