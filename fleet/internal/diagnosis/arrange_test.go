package diagnosis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func finding(rule, subject, cause string, ago time.Duration) *operatorv1.Finding {
	f := &operatorv1.Finding{Rule: rule, Severity: diagnosis.Error, Subject: subject, Cause: cause, Count: 1, Since: before(ago)}
	if rule == "memory-high" {
		f.Severity = diagnosis.Warning
	}
	return f
}

// arrange arranges findings of a fleet in which each service has twelve processes, and returns
// them as lines; what a finding explains is below it.
func arrange(list ...*operatorv1.Finding) (lines []string) {
	was := make([]*operatorv1.Finding, len(list))
	for i, f := range list {
		was[i] = proto.CloneOf(f)
	}
	for _, f := range diagnosis.Arrange(list, func(id string) (string, int) {
		service, _, _ := strings.Cut(id, ".")
		return service, 12
	}) {
		lines = append(lines, fmt.Sprintf("%s %s ×%d", f.GetRule(), f.GetSubject(), f.GetCount()))
		for _, x := range f.GetExplains() {
			lines = append(lines, fmt.Sprintf("  %s %s", x.GetRule(), x.GetSubject()))
		}
	}
	for i, f := range list {
		if !proto.Equal(f, was[i]) {
			lines = append(lines, "changed: "+f.GetRule())
		}
	}
	return lines
}

// Causes are before what they explain, one thing that is wrong with many processes is one row, and
// what is new is before what is old.
func TestArrange(t *testing.T) {
	probes := func(service string, n int, ago time.Duration) (list []*operatorv1.Finding) {
		for i := range n {
			list = append(list, finding("probe-down", fmt.Sprintf("process/%s.pod-%d", service, i), fmt.Sprintf("probe db is down: dial 10.0.0.%d: refused", i), ago+time.Duration(i)*time.Second))
		}
		return list
	}
	for name, test := range map[string]struct {
		list []*operatorv1.Finding
		want string
	}{
		"the newest first, and warnings last": {
			[]*operatorv1.Finding{finding("memory-high", "process/a.1", "", 0), finding("unit-failed", "process/a.1", "", time.Hour), finding("probe-down", "process/a.2", "", time.Minute)},
			"probe-down process/a.2 ×1; unit-failed process/a.1 ×1; memory-high process/a.1 ×1",
		},
		"two are two":                      {probes("web", 2, time.Minute), "probe-down process/web.pod-0 ×1; probe-down process/web.pod-1 ×1"},
		"the same of one service is one":   {probes("web", 10, time.Minute), "probe-down service/web ×10"},
		"two services are two":             {append(probes("web", 3, time.Minute), probes("api", 3, time.Hour)...), "probe-down service/web ×3; probe-down service/api ×3"},
		"another cause is another finding": {append(probes("web", 3, time.Minute), finding("probe-down", "process/web.pod-9", "probe cache is down", time.Hour)), "probe-down service/web ×3; probe-down process/web.pod-9 ×1"},
		"an outage explains what began with it": {
			append(probes("web", 4, time.Minute), finding("dependency-away", "dependency/NATS", "", 90*time.Second), finding("worker-failed", "worker/w", "", 80*time.Second), finding("unit-failed", "process/web.pod-7", "", time.Hour), finding("process-lost", "process/web.pod-8", "", time.Second)),
			"dependency-away dependency/NATS ×1;   probe-down service/web;   worker-failed worker/w; process-lost process/web.pod-8 ×1; unit-failed process/web.pod-7 ×1",
		},
		"an outage is before what is newer": {
			[]*operatorv1.Finding{finding("process-evicted", "process/a.1", "", 0), finding("store-replaced", "dependency/NATS", "", time.Hour), finding("worker-failed", "worker/w", "", time.Minute)},
			"store-replaced dependency/NATS ×1; process-evicted process/a.1 ×1; worker-failed worker/w ×1",
		},
		"one lost bucket explains no probe": {
			[]*operatorv1.Finding{finding("store-replaced", "dependency/NATS", "data was lost: the bucket LEASES is missing", time.Hour), finding("probe-down", "process/a.1", "", time.Minute)},
			"store-replaced dependency/NATS ×1; probe-down process/a.1 ×1",
		},
		"a crash loop explains its ends": {
			[]*operatorv1.Finding{finding("crash-loop", "service/web", "", time.Minute), finding("process-failed", "process/web.1", "exit status 2", 3*time.Second), finding("process-failed", "process/web.2", "exit status 2", 2*time.Second), finding("process-failed", "process/web.3", "exit status 2", time.Second)},
			"crash-loop service/web ×1;   process-failed service/web",
		},
		"a deaf worker explains the hung stop": {
			[]*operatorv1.Finding{finding("stop-hung", "process/a.1", "", 0), finding("worker-ignores-stop", "process/a.1", "", time.Second), finding("stop-hung", "process/a.2", "another", 0), finding("process-failed", "process/a.1", "", 0)},
			"stop-hung process/a.2 ×1; worker-ignores-stop process/a.1 ×1;   stop-hung process/a.1;   process-failed process/a.1",
		},
	} {
		if got := strings.Join(arrange(test.list...), "; "); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, test.want)
		}
	}
	four := diagnosis.Arrange(probes("web", 4, time.Minute), func(string) (string, int) { return "web", 0 })
	if f := four[0]; !strings.HasPrefix(f.GetCause(), "4 processes (such as web.pod-0, web.pod-1, web.pod-2): probe db") {
		t.Errorf("the group of ended processes is %v", f)
	}
	three := diagnosis.Arrange(probes("web", 3, time.Minute), func(string) (string, int) { return "web", 12 })
	if f := three[0]; !strings.HasPrefix(f.GetCause(), "3 of 12 processes (web.pod-0, web.pod-1, web.pod-2): probe db is down: dial 10.0.0.0") || len(f.GetSubjects()) != 3 || !f.GetSince().AsTime().Equal(now.Add(-62*time.Second)) {
		t.Errorf("the group is %v", f)
	}
}

// A dependency that is away under many workers is one row among many, and each page asks for it.
func BenchmarkArrange(b *testing.B) {
	list := []*operatorv1.Finding{finding("dependency-away", "dependency/db", "", time.Minute)}
	for i := range 10_000 {
		list = append(list, finding("dead-letters", fmt.Sprint("worker/w", i), "", time.Second))
	}
	for b.Loop() {
		diagnosis.Arrange(list, func(string) (string, int) { return "", 0 })
	}
}
