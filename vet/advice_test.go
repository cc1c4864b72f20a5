package vet_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// sample is a manifest with its configuration, whose numbers an advice can change.
type sample struct {
	cfg       lifecycle.Config
	grace     int // -1 for none
	sleep     int // of the preStop hook, -1 for no hook
	probes    map[string]*ask
	replicas  int
	budget    [2]string // field and value, "" for none
	surge     [2]string // maxSurge and maxUnavailable, "" for the default
	sidecar   int       // the sleep of a second container, -1 for no container
	local     bool      // externalTrafficPolicy
	ports     string    // more ports of the container
	container string    // more fields of the container
}

// ask is a probe; a number of 0 is the default.
type ask struct {
	path, port, scheme               string
	timeout, period, failures, grace int // grace -1 for none
}

func (s sample) String() string {
	var b strings.Builder
	line := func(indent int, format string, args ...any) {
		b.WriteString(strings.Repeat(" ", indent) + fmt.Sprintf(format, args...) + "\n")
	}
	line(0, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: %d\n  selector: {matchLabels: {app: web}}", s.replicas)
	if s.surge[0] != "" {
		line(2, "strategy: {rollingUpdate: {maxSurge: %s, maxUnavailable: %s}}", s.surge[0], s.surge[1])
	}
	line(2, "template:\n    metadata: {labels: {app: web}}\n    spec:")
	if s.grace >= 0 {
		line(6, "terminationGracePeriodSeconds: %d", s.grace)
	}
	line(6, "containers:\n        - name: main\n          ports: [{name: health, containerPort: 8081}, {name: http, containerPort: 8080}%s]", s.ports)
	b.WriteString(s.container)
	if s.sleep >= 0 {
		line(10, "lifecycle: {preStop: {sleep: {seconds: %d}}}", s.sleep)
	}
	for _, name := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		p := s.probes[name]
		if p == nil {
			continue
		}
		line(10, "%s:", name)
		for field, n := range map[string]int{"timeoutSeconds": p.timeout, "periodSeconds": p.period, "failureThreshold": p.failures} {
			if n > 0 {
				line(12, "%s: %d", field, n)
			}
		}
		if p.grace >= 0 {
			line(12, "terminationGracePeriodSeconds: %d", p.grace)
		}
		if p.path == "" {
			line(12, "tcpSocket: {port: %s}", p.port)
			continue
		}
		line(12, "httpGet: {path: %s, port: %s, scheme: %s}", p.path, p.port, p.scheme)
	}
	if s.sidecar >= 0 {
		line(8, "- {name: proxy, lifecycle: {preStop: {sleep: {seconds: %d}}}}", s.sidecar)
	}
	if s.budget[0] != "" {
		line(0, "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {%s: %s, selector: {matchLabels: {app: web}}}", s.budget[0], s.budget[1])
	}
	policy := "Cluster"
	if s.local {
		policy = "Local"
	}
	line(0, "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer, externalTrafficPolicy: %s, selector: {app: web}, ports: [{port: 80, targetPort: http}]}", policy)
	return b.String()
}

func (s sample) clone() sample {
	probes := map[string]*ask{}
	for name, p := range s.probes {
		if p != nil {
			c := *p
			probes[name] = &c
		}
	}
	s.probes = probes
	return s
}

// randomSample returns a random sample. Half of its parts are right.
func randomSample(r *rand.Rand) sample {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	wait := func() time.Duration {
		waits := []time.Duration{
			0, 0, 0, lifecycle.Off,
			time.Second, 1500 * time.Millisecond, 2500 * time.Millisecond, 4 * time.Second, 15 * time.Second, time.Minute,
		}
		return waits[r.IntN(len(waits))]
	}
	s := sample{grace: []int{-1, 30, 0, 5, 27, 26, 60, 120, 300}[r.IntN(9)], sleep: []int{-1, -1, 0, 3, 20}[r.IntN(5)], sidecar: []int{-1, -1, 0, 200}[r.IntN(4)],
		replicas: 1 + r.IntN(5), local: r.IntN(4) == 0, probes: map[string]*ask{}}
	for _, d := range []*time.Duration{&s.cfg.DrainInterval, &s.cfg.DrainMax, &s.cfg.ShutdownGrace, &s.cfg.PreStop, &s.cfg.TerminationGrace, &s.cfg.LivenessGrace, &s.cfg.Linger, &s.cfg.ProbeTimeout} {
		if *d = wait(); *d == lifecycle.Off && d != &s.cfg.DrainInterval {
			*d = 0
		}
	}
	if r.IntN(2) == 0 {
		s.cfg.TerminationGrace = time.Duration(max(s.grace, 30)) * time.Second
	}
	s.cfg.HealthAddr = pick("", "", "", ":8081", "127.0.0.1:8081", ":9000", "off")
	s.cfg.DrainReadiness = lifecycle.DrainReadiness(pick("", "", "serving"))
	for _, name := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		p := &ask{path: plane(name), port: "health", scheme: "HTTP", timeout: r.IntN(3), period: r.IntN(4), failures: r.IntN(5), grace: []int{-1, -1, -1, 5, 60}[r.IntN(5)]}
		if r.IntN(3) == 0 {
			p.path = pick("/livez", "/readyz", "/startupz", "/healthz", "/ping", "", "/readyz/db")
			p.port = pick("health", "8081", "8080", "http", "nothing")
			p.scheme = pick("HTTP", "HTTPS")
		}
		if p.path == "" {
			p.port, p.scheme = "8080", "HTTP"
		}
		if r.IntN(5) > 0 {
			s.probes[name] = p
		}
	}
	if field := pick("minAvailable", "maxUnavailable", ""); field != "" {
		s.budget = [2]string{field, pick("0", "1", "2", "5", "100%", "50%", "0%", "99%")}
	}
	if r.IntN(2) == 0 {
		s.surge = [2]string{"1", pick("0", "1", "50%")}
	}
	return s
}

func plane(probe string) string {
	return map[string]string{"livenessProbe": "/livez", "readinessProbe": "/readyz", "startupProbe": "/startupz"}[probe]
}

// step is a part of an advice: what it says, and what a reader then does. The finding
// names the probe that the advice is about.
type step struct {
	says *regexp.Regexp
	do   func(s *sample, probe string, m []string)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// probeOf returns the probe of that name, which an advice may add.
func (s *sample) probeOf(name string) *ask {
	if s.probes[name] == nil {
		s.probes[name] = &ask{grace: -1, scheme: "HTTP"}
	}
	return s.probes[name]
}

// field sets a key of the configuration; "" is its default.
func (s *sample) field(key, value string) {
	v := reflect.ValueOf(&s.cfg).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") != key {
			continue
		}
		switch d, err := time.ParseDuration(value); {
		case v.Field(i).Kind() == reflect.String:
			v.Field(i).SetString(strings.Trim(value, `"`))
		case value == "":
			v.Field(i).SetZero()
		case err != nil || d <= 0:
			panic(key + " of " + value + " means its default, or nothing")
		default:
			v.Field(i).SetInt(int64(d))
		}
		return
	}
	panic("there is no key " + key)
}

// steps are all that an advice may say about the parts of a sample.
var steps = []step{
	{regexp.MustCompile(`^terminationGracePeriodSeconds of the (\w+) to (\d+)`), func(s *sample, _ string, m []string) { s.probeOf(m[1]).grace = number(m[2]) }},
	{regexp.MustCompile(`^terminationGracePeriodSeconds to (\d+)`), func(s *sample, _ string, m []string) { s.grace = number(m[1]) }},
	{regexp.MustCompile(`^the terminationGracePeriodSeconds that (\w+) stands for`), func(s *sample, _ string, m []string) {
		up := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
		switch p := s.probes["livenessProbe"]; {
		case m[1] == "termination_grace":
			s.grace = max(s.grace, up(s.cfg.TerminationGrace))
		case p != nil:
			p.grace = up(s.cfg.LivenessGrace)
		}
	}},
	{regexp.MustCompile(`^remove lifecycle\.(\w+)`), func(s *sample, _ string, m []string) { s.field(m[1], "") }},
	{regexp.MustCompile(`^lifecycle\.pre_stop with it`), func(s *sample, _ string, _ []string) { s.cfg.PreStop = 0 }},
	{regexp.MustCompile(`^(?:lower )?lifecycle\.(\w+) to (\S+?)( or more| to a valid)?$`), func(s *sample, _ string, m []string) { s.field(m[1], m[2]) }},
	{regexp.MustCompile(`^lifecycle\.(\w+) to a valid value`), func(s *sample, _ string, m []string) { s.field(m[1], "") }},
	{regexp.MustCompile(`^remove it for its default`), func(*sample, string, []string) {}},
	{regexp.MustCompile(`^remove it$`), func(s *sample, probe string, _ []string) { s.probeOf(probe).grace = -1 }},
	{regexp.MustCompile(`^remove the hook`), func(s *sample, _ string, _ []string) { s.sleep = -1 }},
	{regexp.MustCompile(`^(?:readinessProbe\.)?periodSeconds to (\d+)`), func(s *sample, probe string, m []string) { s.probeOf(probe).period = number(m[1]) }},
	{regexp.MustCompile(`^failureThreshold to (\d+)`), func(s *sample, probe string, m []string) { s.probeOf(probe).failures = number(m[1]) }},
	{regexp.MustCompile(`^timeoutSeconds to (\d+)`), func(s *sample, probe string, m []string) { s.probeOf(probe).timeout = number(m[1]) }},
	{regexp.MustCompile(`^(?:use httpGet: set )?path to (\S+)`), func(s *sample, probe string, m []string) { s.probeOf(probe).path = m[1] }},
	{regexp.MustCompile(`^port to (\d+)`), func(s *sample, probe string, m []string) { s.probeOf(probe).port = m[1] }},
	{regexp.MustCompile(`^scheme to HTTP$`), func(s *sample, probe string, _ []string) { s.probeOf(probe).scheme = "HTTP" }},
	{regexp.MustCompile(`^ask (\S+) on port (\d+)`), func(s *sample, probe string, m []string) {
		s.probeOf(probe).path, s.probeOf(probe).port = m[1], m[2]
	}},
	{regexp.MustCompile(`^add \{name: (\w+); containerPort: (\d+)\} to the container's ports`), func(s *sample, _ string, m []string) {
		s.ports += fmt.Sprintf(", {name: %s, containerPort: %s}", m[1], m[2])
	}},
	{regexp.MustCompile(`^replicas to 2`), func(s *sample, _ string, _ []string) { s.replicas = 2 }},
	{regexp.MustCompile(`^maxUnavailable: 1( in place of minAvailable)?$`), func(s *sample, _ string, _ []string) { s.budget = [2]string{"maxUnavailable", "1"} }},
	{regexp.MustCompile(`^strategy\.rollingUpdate to \{maxSurge: 1; maxUnavailable: 0\}`), func(s *sample, _ string, _ []string) { s.surge = [2]string{"1", "0"} }},
	{regexp.MustCompile(`^add a PodDisruptionBudget with maxUnavailable: 1`), func(s *sample, _ string, _ []string) { s.budget = [2]string{"maxUnavailable", "1"} }},
	{regexp.MustCompile(`^preStop.sleep.seconds (\d+)`), func(s *sample, _ string, m []string) { s.sidecar = number(m[1]) }},
	{regexp.MustCompile(`^make it a native sidecar`), func(s *sample, _ string, _ []string) { s.sidecar = -1 }},
	{regexp.MustCompile(`^one: httpGet (\S+) on port (\d+)`), func(s *sample, probe string, m []string) {
		*s.probeOf(probe) = ask{path: m[1], port: m[2], scheme: "HTTP", grace: -1}
	}},
}

// joints are the words that join the steps of an advice.
var joints = regexp.MustCompile(`, and so |, and |, | and (?:failureThreshold|port) `)

// follow applies one alternative of an advice.
func follow(s sample, f vet.Finding, alternative string) sample {
	s = s.clone()
	probe := ""
	for _, name := range []string{"readinessProbe", "livenessProbe", "startupProbe"} {
		if strings.Contains(f.Field, name) || strings.Contains(f.Reason, name) && probe == "" {
			probe = name
		}
	}
	switch f.Rule {
	case "no-startup":
		probe = "startupProbe"
	case "no-liveness":
		probe = "livenessProbe"
	}
	text := strings.NewReplacer(", maxUnavailable: 0}", "; maxUnavailable: 0}", ", containerPort:", "; containerPort:", " and failureThreshold to", ", failureThreshold to", " and port to", ", port to").Replace(alternative)
	if m := regexp.MustCompile(`lifecycle\.(\w+) to`).FindStringSubmatch(text); m != nil {
		text = strings.Replace(text, "that it stands for", "that "+m[1]+" stands for", 1)
	}
	for _, part := range joints.Split(text, -1) {
		part = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(part, "use httpGet: "), "set "), "add one"), " or more")
		if strings.HasPrefix(part, ": httpGet") {
			part = "one" + part
		}
		known := false
		for _, st := range steps {
			if m := st.says.FindStringSubmatch(part); m != nil {
				st.do(&s, probe, m)
				known = true
				break
			}
		}
		if !known && !harmless.MatchString(part) {
			panic(fmt.Sprintf("%s: the test cannot follow %q of %q", f.Rule, part, f.Fix))
		}
	}
	return s
}

// harmless are words that explain, and those of advice without a number.
var harmless = regexp.MustCompile(`^(if it is in another file|give that too|drain_interval|already waits|periodSeconds 1|failureThreshold (1|as many)|move it to|\d|the time belongs)`)

// TestAdviceIsRight, with VET_SAMPLES=2000 for more samples, follows each alternative of every advice as a reader does: the finding
// is gone, and no new error came.
func TestAdviceIsRight(t *testing.T) {
	count := 60
	if text := os.Getenv("VET_SAMPLES"); text != "" {
		count = number(text)
	}
	followed := map[string]int{}
	for seed := range count {
		s := randomSample(rand.New(rand.NewPCG(uint64(seed), 15)))
		before := check(s.cfg, s.String())
		for _, f := range before.Findings {
			if slices.Contains([]string{"not-compared", "termination-log", "liveness-alias", "prestop-sleep"}, f.Rule) {
				continue
			}
			for _, alternative := range alternatives(f) {
				after := follow(s, f, alternative)
				followed[f.Rule]++
				report := check(after.cfg, after.String())
				for _, g := range report.Findings {
					if same(f, g) {
						t.Errorf("seed %d: %s is still there after %q of %q: %s\n%+v\n%s", seed, f.Rule, alternative, f.Fix, g.Reason, after.cfg, after)
					} else if g.Severity == vet.Error && !slices.ContainsFunc(before.Findings, func(b vet.Finding) bool { return same(b, g) }) {
						t.Errorf("seed %d: after %q of %s comes %s: %s\nbefore: %+v\n%+v\n%s", seed, alternative, f.Rule, g.Rule, g.Reason, s.cfg, after.cfg, after)
					}
				}
			}
		}
		if t.Failed() {
			return
		}
	}
	for _, rule := range []string{"grace-too-short", "grace-declared", "grace-undeclared", "probe-grace-too-short", "prestop-undeclared", "drain-unnoticed", "probe-timeout", "pdb-blocks", "single-replica", "health-unreachable", "config-refused"} {
		if followed[rule] == 0 {
			t.Errorf("no sample has %s", rule)
		}
	}
	t.Log(followed)
}

// alternatives splits an advice at the words between its alternatives.
func alternatives(f vet.Finding) (all []string) {
	fix := strings.ReplaceAll(f.Fix, "; or give it", ", or")
	for _, part := range regexp.MustCompile(`, or (?:lower lifecycle\.\w+ or )?`).Split(fix, -1) {
		switch {
		case f.Rule == "config-refused" && !strings.HasPrefix(part, "set "): // "lower one of these by so much in all" has no number for each
		case strings.HasPrefix(part, "change "), strings.HasPrefix(part, "make the window"):
		default:
			all = append(all, part)
		}
	}
	return all
}

// same reports whether two findings are about the same thing.
func same(a, b vet.Finding) bool {
	return a.Rule == b.Rule && a.Object == b.Object && a.Container == b.Container && strings.TrimSuffix(a.Field, ".maxUnavailable") == strings.TrimSuffix(b.Field, ".maxUnavailable")
}
