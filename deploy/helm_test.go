package deploy

import (
	"strings"
	"testing"
)

const chartFolder = "helm/lifecycle-service"

// chart renders the chart with these values.
func chart(t *testing.T, set ...string) string {
	t.Helper()
	return must(t, tool(t, "helm"), chartArgs(set)...)
}

func chartArgs(set []string) []string {
	args := []string{"template", "web", chartFolder}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return args
}

func TestChartLints(t *testing.T) {
	must(t, tool(t, "helm"), "lint", "--strict", chartFolder)
}

// TestChartIsClean: for any value of the chart's one number, the others agree with it.
func TestChartIsClean(t *testing.T) {
	for name, set := range map[string][]string{
		"defaults":           nil,
		"shortest":           {"drainSeconds=3"},
		"four":               {"drainSeconds=4"},
		"long":               {"drainSeconds=15"},
		"longest":            {"drainSeconds=600"},
		"shutdown":           {"drainSeconds=3", "shutdownSeconds=90"},
		"one replica":        {"replicas=1"},
		"none":               {"replicas=0"},
		"local traffic":      {"service.type=LoadBalancer", "service.externalTrafficPolicy=Local"},
		"monitored":          {"serviceMonitor.enabled=true"},
		"other ports":        {"ports.http=9000", "ports.health=9001"},
		"own config":         {"config.poll=2s", "config.lifecycle.linger=1s", "config.lifecycle.drain_readiness=serving"},
		"no policy, no name": {"networkPolicy.enabled=false", "image.tag=v2"},
	} {
		t.Run(name, func(t *testing.T) { mustBeClean(t, chart(t, set...)) })
	}
}

func TestChartDerivesEveryNumber(t *testing.T) {
	manifest := chart(t, "drainSeconds=15")
	for _, want := range []string{
		"DRAIN_INTERVAL, value: 15s", "SHUTDOWN_GRACE, value: 60s", "TERMINATION_GRACE, value: 80s", "terminationGracePeriodSeconds: 80",
	} {
		if !strings.Contains(manifest, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if own := chart(t, "config.poll=2s", "config.lifecycle.linger=1s"); !strings.Contains(own, "poll: 2s") || !strings.Contains(own, "linger: 1s") {
		t.Error("what the user configures is lost")
	}
}

// TestChartRefusesBadValues: the schema names the value.
func TestChartRefusesBadValues(t *testing.T) {
	for set, want := range map[string]string{
		"drainSeconds=2":                       "drainSeconds",
		"drainSeconds=5s":                      "drainSeconds",
		"drainSeconds=601":                     "drainSeconds",
		"shutdownSeconds=1":                    "shutdownSeconds",
		"replicas=-1":                          "replicas",
		"drainSecond=5":                        "drainSecond",
		"image.repository=":                    "repository",
		"image.pullPolicy=Sometimes":           "pullPolicy",
		"ports.health=70000":                   "health",
		"config.lifecycle.drain_interval=9s":   "drain_interval",
		"config.lifecycle.termination_grace=1": "termination_grace",
		"config.lifecycle.drain_readiness=up":  "drain_readiness",
		"service.externalTrafficPolicy=Near":   "externalTrafficPolicy",
		"serviceMonitor.interval=often":        "interval",
	} {
		if out, err := output(t, tool(t, "helm"), chartArgs([]string{set})...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that names %s\n%.200s", set, err, want, out)
		}
	}
}
