package diagnosis_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

var now = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }

// process returns a process that is well, after changes.
func process(change ...func(*operatorv1.Process)) *operatorv1.Process {
	p := &operatorv1.Process{
		Id: "web-1", Service: "web", Version: "1", Phase: "running", Ready: true, StartedAt: before(time.Hour), SeenAt: before(time.Second), SaidAt: before(time.Second),
		Budget: durationpb.New(30 * time.Second),
		Units:  []*operatorv1.Unit{{Name: "http", Status: "Running"}, {Name: "poller", Status: "Running"}},
		Phases: []*operatorv1.PhaseTime{{Phase: "starting", Entered: before(time.Hour)}, {Phase: "running", Entered: before(time.Hour)}},
		Probes: []*operatorv1.Probe{{Plane: "readiness", Name: "db", State: "up", Critical: true}, {Plane: "readiness", Name: "lifecycle", State: "up", Critical: true}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func in(phase string, since time.Duration, waiting string) func(*operatorv1.Process) {
	return func(p *operatorv1.Process) {
		p.Phase, p.Waiting = phase, waiting
		p.Phases = append(p.Phases, &operatorv1.PhaseTime{Phase: phase, Entered: before(since)})
		if phase == "starting" {
			p.Phases = p.Phases[2:]
		}
	}
}

func restarted(unit string, ago ...time.Duration) func(*operatorv1.Process) {
	return func(p *operatorv1.Process) {
		for _, d := range ago {
			p.Restarts = append(p.Restarts, &operatorv1.Restart{Unit: unit, At: before(d), Cause: "connection refused"})
		}
	}
}

func probe(state, text string, critical bool) func(*operatorv1.Process) {
	return func(p *operatorv1.Process) {
		p.Probes = append(p.Probes, &operatorv1.Probe{Plane: "readiness", Name: "queue", State: state, Error: text, Slow: strings.HasPrefix(text, "still running"), Critical: critical, Since: before(time.Minute)})
	}
}

func unit(name, status, reason string) func(*operatorv1.Process) {
	return func(p *operatorv1.Process) {
		p.Units = append(p.Units, &operatorv1.Unit{Name: "pool", Status: "Running", Children: []*operatorv1.Unit{{Name: name, Status: status, Reason: reason, Since: before(time.Minute)}}})
	}
}

func fleet(list ...*operatorv1.Process) diagnosis.Fleet {
	return diagnosis.Fleet{Now: now, Processes: list}
}

func ended(kind, class string, ago time.Duration, cause string) diagnosis.Fleet {
	return diagnosis.Fleet{Now: now, Ends: []*operatorv1.Event{{Kind: kind, To: class, At: before(ago), Service: "web", Process: "web-1", Cause: cause}}}
}

func storing(s diagnosis.Store) diagnosis.Fleet { return diagnosis.Fleet{Now: now, Store: s} }

func hosted(w *operatorv1.Worker) diagnosis.Fleet {
	return diagnosis.Fleet{Now: now, Workers: []*operatorv1.Worker{w}, Letters: map[string]string{w.GetId(): "json: unexpected end"}}
}

// downs returns events of a probe that went down.
func downs(name string, times int) (list []*operatorv1.Event) {
	for range times {
		list = append(list, &operatorv1.Event{Kind: "probe", Name: name, To: "down", Process: "web-1", At: before(time.Minute), Cause: "connection reset"})
	}
	return list
}

// stoppedChild gives a process a child that was stopped so long ago, under a unit of this kind.
func stoppedChild(ago time.Duration, kind string) func(*operatorv1.Process) {
	return func(p *operatorv1.Process) {
		p.Units = append(p.Units, &operatorv1.Unit{Name: "pool", Kind: kind, Status: "Running", Children: []*operatorv1.Unit{
			{Name: "mailer", Status: "Stopped", Since: before(ago), Restartable: true},
		}})
	}
}

// stalled is a store with a consumer that finishes nothing.
func stalled(consumer string) diagnosis.Store {
	return diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: consumer, Left: 36, Unacknowledged: 2, Since: now.Add(-3 * time.Minute)}}}
}

// suspend suspends a process, two minutes ago.
func suspend(p *operatorv1.Process) {
	p.Suspended = "new disk"
	p.Probes[1].State, p.Probes[1].Since = "down", before(2*time.Minute)
}

// Each fault is found by its rule, with its cause and what to do. The cause was written
// down before the rule.
func TestFaults(t *testing.T) {
	tests := map[string]struct {
		fleet              diagnosis.Fleet
		rule, cause, doing string
	}{
		// The eleven.
		"a poison message":           {hosted(&operatorv1.Worker{Id: "thumbs", State: "running", Desired: "running", DeadLetters: 18}), "dead-letters", "18 messages could not be handled; the oldest: json: unexpected end", "lifecyclectl dead-letters thumbs"},
		"a start that blocks":        {fleet(process(in("starting", 5*time.Minute, "unit cache"))), "start-blocked", "starting for 5m0s and waits for unit cache", "describe web-1"},
		"a config typo":              {fleet(process(restarted("missions-1", time.Second, 2*time.Second, 4*time.Second))), "crash-loop", "unit missions-1 was started again 3 times within 5m0s; its last run ended with: connection refused", "describe web-1"},
		"a slow probe":               {fleet(process(probe("down", "still running for 12s", true))), "probe-slow", "probe queue is down: still running for 12s: /readyz fails", "lifecycle.probe_timeout"},
		"a hung hook":                {fleet(process(in("stopping", 40*time.Second, "hook flush"))), "stop-hung", "stopping for 40s, longer than its budget of 30s, and waits for hook flush", "describe web-1"},
		"a grace too short":          {ended("exit", "cut", time.Minute, "SIGTERM; 3 requests were cut"), "grace-too-short", "3 requests were cut", "lifecycle.shutdown_grace"},
		"a crash loop":               {fleet(process(restarted("poller", time.Second, time.Minute, 2*time.Minute, 3*time.Minute))), "crash-loop", "started again 4 times", "describe web-1"},
		"a worker that ignores TERM": {diagnosis.Fleet{Now: now, Killed: []*operatorv1.Event{{Kind: "unit", Name: "py", To: "Killed", Process: "web-1", At: before(time.Minute)}}}, "worker-ignores-stop", "unit py did not end when it was asked to", "grace of the worker"},
		"a stuck entity":             {diagnosis.Fleet{Now: now, Stuck: []diagnosis.Stuck{{Type: "order", Phase: "paying", ID: "o-1", Count: 2, Since: now.Add(-30 * time.Hour), Limit: 24 * time.Hour}}}, "entity-stuck", "2 entities are in the phase paying for longer than 24h0m0s; the oldest is o-1", "history order o-1"},
		"a hot entity":               {diagnosis.Fleet{Now: now, Hot: []diagnosis.Hot{{Type: "order", ID: "o-1", Writes: 300}}}, "entity-hot", "entity o-1 was written 300 times within a minute", "history order o-1"},
		"one stuck entity": {
			diagnosis.Fleet{Now: now, Stuck: []diagnosis.Stuck{{Type: "order", Phase: "paying", ID: "o-1", Count: 1, Limit: time.Hour}}},
			"entity-stuck",
			"1 entity is in the phase paying",
			"history order o-1",
		},
		"a full disk": {
			storing(diagnosis.Store{Refused: "no space left on device", RefusedSince: now.Add(-time.Minute)}),
			"store-refuses-writes",
			"NATS takes no writes: no space left on device",
			"the disk of NATS",
		},
		"an empty disk": {storing(diagnosis.Store{Replaced: true, Lost: []diagnosis.Lost{{Stream: "KV_ORDERS", Messages: 1, Missing: true}, {Stream: "WORK"}}}),
			"store-replaced", "NATS has nothing of what it had on disk: the bucket ORDERS is missing (it had 1 message), the stream WORK was made anew, empty (it had 0 messages)", "restore"},
		"a lost stream":               {storing(diagnosis.Store{Lost: []diagnosis.Lost{{Stream: "WORK", Messages: 7, Missing: true}}}), "store-replaced", "data was lost: the stream WORK is missing (it had 7 messages)", "restore"},
		"a full stream":               {storing(diagnosis.Store{Full: []diagnosis.Full{{Stream: "WORK", What: "bytes", Used: 99, Most: 100}}}), "stream-full", "the stream WORK has 99 of at most 100 bytes", "the limit of the stream"},
		"a dead consumer":             {storing(diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: "billing", Left: 36, Since: now.Add(-3 * time.Minute)}}}), "consumer-stalled", "the consumer billing of the stream WORK has finished nothing for 3m0s while 36 messages wait", ""},
		"a consumer without a client": {storing(diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: "billing", Left: 36, Since: now.Add(-3 * time.Minute)}}}), "consumer-stalled", "while 36 messages wait; none of them is delivered: no client may be asking for them", ""},
		"a consumer that hangs":       {storing(diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: "billing", Left: 36, Unacknowledged: 2, Since: now.Add(-3 * time.Minute)}}}), "consumer-stalled", "while 36 messages wait; of them, 2 delivered and not acknowledged", ""},
		"a message that fails again":  {storing(diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: "billing", Left: 36, Unacknowledged: 2, Redelivered: 1, Since: now.Add(-3 * time.Minute)}}}), "consumer-stalled", "of them, 1 delivered more than once and never acknowledged: the handler may fail or hang at the same message", ""},
		"a slow consumer":             {storing(diagnosis.Store{Growing: []diagnosis.Backlog{{Stream: "WORK", Consumer: "billing", From: 36, Left: 360, Since: now.Add(-3 * time.Minute)}}}), "backlog-grows", "has grown from 36 to 360 messages within 3m0s", "the number of its processes"},
		"NATS is down":                {diagnosis.Fleet{Now: now, Away: []diagnosis.Away{{Name: "NATS", Err: "connection refused", Since: now.Add(-time.Minute)}}}, "dependency-away", "NATS does not answer: connection refused", "doctor"},
		"an OOM kill":                 {ended("lost", "oom", time.Minute, "not heard since 11:59; its memory was at 99 of 100 MiB"), "out-of-memory", "99 of 100 MiB", "resources.limits.memory"},
		"an OOM kill of a worker":     {fleet(process(unit("py", "Pending", "out of memory: signal: killed"))), "out-of-memory", "worker pool/py: out of memory", "memory limit of the worker"},
		// Ten more.
		"a hook that was abandoned": {ended("exit", "hung", time.Minute, "hook flush abandoned in 5s"), "stop-hung", "hook flush abandoned", "lifecycle.shutdown_grace"},
		"a kill in the middle":      {ended("lost", "forced", time.Minute, "it was killed about 5s after its stop began, and its budget is 30s"), "grace-too-short", "its budget is 30s", "terminationGracePeriodSeconds"},
		"a panic":                   {ended("lost", "lost", time.Minute, "not heard since 11:59; it was running"), "process-lost", "it was running", "describe web-1"},
		"an end with an error":      {ended("exit", "failed", time.Minute, "unit http failed: bind"), "process-failed", "unit http failed: bind", "describe web-1"},
		"a unit that failed":        {fleet(process(unit("w", "Failed", "no such table"))), "unit-failed", "unit pool/w has failed: no such table", "describe web-1"},
		"a probe that fails":        {fleet(process(probe("down", "connection refused", true))), "probe-down", "probe queue is down: connection refused: /readyz fails", "describe web-1"},
		"a forgotten suspension": {fleet(process(func(p *operatorv1.Process) {
			p.Suspended = "new disk (asked by ada)"
			p.Probes[1].State, p.Probes[1].Since = "down", before(time.Hour)
		})), "suspended-long", "new disk (asked by ada)", "processes resume web-1"},
		"a reload that was refused": {fleet(process(func(p *operatorv1.Process) {
			p.Steps = []*operatorv1.Step{{Kind: "reload", Name: "config", Result: "ok"}, {Kind: "reload", Name: "config", Result: "failed", Error: "yaml: line 3"}}
		})), "reload-refused", "reload config was refused: yaml: line 3", "describe web-1"},
		"a deadlock": {fleet(process(func(p *operatorv1.Process) {
			p.Units[1].Progress, p.Units[1].ProgressGap = before(5*time.Minute), durationpb.New(10*time.Second)
		})), "unit-stands-still", "unit poller has given no sign of progress for 4m59s; the longest time between two signs of progress was 10s", "stacks web-1"},
		"a deadlock in a server": {fleet(process(func(p *operatorv1.Process) {
			p.Servers = []*operatorv1.Server{{Name: "http", InFlight: 12}}
			p.Units[0].Progress, p.Units[0].ProgressGap = before(5*time.Minute), durationpb.New(10*time.Second)
		})), "unit-stands-still", "server http has finished no request and sent nothing for 4m59s while 12 requests wait; the longest time", "stacks web-1"},
		"a unit in a long backoff": {fleet(process(unit("w", "Pending", "backoff after: no such table"), func(p *operatorv1.Process) {
			p.Units[2].Children[0].Since = before(10*time.Minute + time.Second)
		})), "unit-failed", "unit pool/w does not run: it has waited for 10m0s until it is started again; backoff after: no such table", "the Max of its Backoff"},
		"handlers that panic": {fleet(process(func(p *operatorv1.Process) {
			p.Servers = []*operatorv1.Server{{Name: "http", Panics: 17, LastPanic: "no such order", Panicking: before(31 * time.Second)}}
		})), "requests-panic", "handlers of server http have panicked 17 times, three times within the last 30s; the last one said: no such order", "logs web-1"},
		"a busy loop": {fleet(process(func(p *operatorv1.Process) {
			p.Processor = &operatorv1.Processor{Percent: 101, Most: 800, Since: before(3*time.Minute + time.Second)}
		})), "processor-busy", "it has used 101 % of one processor, of at most 800, without a pause for 3m0s, and no unit gives a sign of progress", "stacks web-1"},
		"as many busy loops as processors": {fleet(process(func(p *operatorv1.Process) {
			p.Processor = &operatorv1.Processor{Percent: 798, Most: 800, Since: before(3 * time.Minute)}
		})), "processor-busy", "798 % of one processor, of at most 800", "lifecycle.Progress"},
		"a child that was stopped and forgotten": {fleet(process(stoppedChild(16*time.Minute, "supervisor"))), "unit-stopped",
			"unit pool/mailer was stopped and not started again", "processes restart-unit web-1 pool/mailer"},
		"a consumer of a unit that hangs": {diagnosis.Fleet{Now: now, Processes: []*operatorv1.Process{process(unit("billing", "Running", ""))}, Store: stalled("billing")},
			"consumer-stalled", "of them, 2 delivered and not acknowledged; the unit pool/billing has its name", "stacks web-1"},
		"a consumer of a service that hangs": {diagnosis.Fleet{Now: now, Processes: []*operatorv1.Process{process()}, Store: stalled("web")},
			"consumer-stalled", "of them, 2 delivered and not acknowledged; the service has its name", "stacks web-1"},
		"a consumer that nobody has": {storing(stalled("billing")), "consumer-stalled", "36 messages wait", "nats consumer info WORK billing"},
		"a leak of goroutines": {fleet(process(func(p *operatorv1.Process) {
			p.Goroutines, p.GoroutineGrowth = 175_000, &operatorv1.Growth{Since: before(2 * time.Minute), From: 40}
		})), "goroutines-grow", "its goroutines have only grown for 1m59s: from 40 to 175000", "stacks web-1"},
		"a slow leak of goroutines": {fleet(process(func(p *operatorv1.Process) {
			p.Goroutines, p.GoroutineGrowth = 1200, &operatorv1.Growth{Since: before(20 * time.Minute), From: 40}
		})), "goroutines-grow", "from 40 to 1200", "stacks web-1"},
		"a leak of memory": {fleet(process(func(p *operatorv1.Process) {
			p.MemoryBytes, p.MemoryLimitBytes, p.MemoryGrowth = 400<<20, 1<<30, &operatorv1.Growth{Since: before(20*time.Minute + time.Second), From: 100 << 20}
		})), "memory-grows", "only grown for 20m0s: from 100 MiB to 400 MiB; at this pace it reaches its limit of 1.0 GiB in about 42m0s", "what the process keeps"},
		"many open files":          {fleet(process(func(p *operatorv1.Process) { p.Descriptors, p.DescriptorLimit = 950, 1024 })), "descriptors-high", "950 of at most 1024 open files", "the limit of open files"},
		"processor time used":      {fleet(process(func(p *operatorv1.Process) { p.ThrottledPercent = 60 })), "throttled", "used up in 60 % of the last minute", "resources.limits.cpu"},
		"memory near the limit":    {fleet(process(func(p *operatorv1.Process) { p.MemoryBytes, p.MemoryLimitBytes = 95<<20, 100<<20 })), "memory-high", "95 MiB of its limit of 100 MiB", "resources.limits.memory (now 100 MiB)"},
		"two versions for an hour": {fleet(process(), process(func(p *operatorv1.Process) { p.Id, p.Version = "web-2", "2" })), "version-skew", "1 with 1, 1 with 2", "processes list --service web"},
		"a clock an hour ahead":    {fleet(process(func(p *operatorv1.Process) { p.Host, p.SaidAt = "node-3", before(-time.Hour) })), "clock-skew", "the clock of node-3 differs from the broker's by 1h0m1s", "time service"},
		"an event storm":           {ended("dropped", "", time.Minute, ""), "journal-dropped", "of this process not in the journal", "events --process web-1"},
		"a canary that was rolled back": {hosted(&operatorv1.Worker{Id: "thumbs", State: "running", Desired: "running", UpdatedAt: before(time.Hour), Changed: "the canary is rolled back: it failed 9 of 20 messages"}),
			"canary-rolled-back", "the canary is rolled back: it failed 9 of 20 messages; the version before it runs", "workers history thumbs"},
		"a hosted worker that failed": {hosted(&operatorv1.Worker{Id: "thumbs", State: "failed", Desired: "running", Error: "no memory"}), "worker-failed", "it has failed: no memory", "workers get thumbs"},
		"records that cannot be read": {diagnosis.Fleet{Now: now, Workflows: []*operatorv1.Definition{{Type: "order", Degraded: 2}}}, "entity-degraded", "2 stored records cannot be read", "list order"},
		"a service that crashes": {diagnosis.Fleet{Now: now, Ends: []*operatorv1.Event{
			{Kind: "exit", To: "failed", At: before(3 * time.Minute), Service: "web", Process: "a"}, {Kind: "lost", To: "lost", At: before(2 * time.Minute), Service: "web", Process: "b"}, {Kind: "exit", To: "failed", At: before(time.Minute), Service: "web", Process: "c", Cause: "config: unknown key adress"},
		}}, "crash-loop", "3 processes of web ended badly within 10m0s; the last one: config: unknown key adress", "events --service web --kind exit,lost"},
		"a probe that flaps": {diagnosis.Fleet{Now: now, Processes: []*operatorv1.Process{process()}, Downs: downs("readiness/db", 3)}, "probe-flaps",
			"probe db has failed 3 times within 5m0s, and passed in between: connection reset", "events --process web-1 --kind probe"},
		"a suspended service": {fleet(process(suspend), process(suspend, func(p *operatorv1.Process) { p.Id = "web-2" })), "suspended-long",
			"no process of web is ready: readiness is suspended in all 2, the last time: new disk", "processes resume web-1"},
		"many threads": {fleet(process(func(p *operatorv1.Process) { p.Threads = 1500 })), "threads-high", "it has 1500 threads", "what blocks a thread"},
		"a hook that fails": {diagnosis.Fleet{Now: now, Hooks: []diagnosis.Hook{{Type: "order", Name: "invoice", Failing: 300, Failures: 4}}}, "hook-fails",
			"300 reactions of the hook invoice failed and will be tried again, one of them 4 times", "list order"},
		"a panic that Kubernetes knows":      {ended("lost", "panicked", time.Minute, "the platform says: Error; exit status 2, as of a panic; panic: boom"), "process-failed", "it panicked: the platform says: Error; exit status 2", "describe web-1"},
		"a kill that Kubernetes knows":       {ended("lost", "killed", time.Minute, "the platform says: Error; signal 9 (killed) ended it"), "process-lost", "signal 9 (killed) ended it", "describe web-1"},
		"an eviction":                        {ended("lost", "evicted", time.Minute, "the platform says: Evicted; the node was low on resource: memory"), "process-evicted", "low on resource", "resources.requests"},
		"an announcement that is forged":     {fleet(process(func(p *operatorv1.Process) { p.Suspect = "another client has written its entry" })), "announcement-suspect", "another client has written its entry", "NATS permissions"},
		"an announcement out of nowhere":     {fleet(&operatorv1.Process{Id: "web-1", Suspect: "it has no signature"}), "announcement-suspect", "it has no signature", "processes get web-1"},
		"an announcement of a newer version": {fleet(&operatorv1.Process{Id: "web-1", Reason: "its announcement cannot be read: bad JSON"}), "announcement-unreadable", "cannot be read", "processes get web-1"},
	}
	said := map[string]bool{}
	for name, test := range tests {
		list := diagnosis.Diagnose(test.fleet)
		i := slices.IndexFunc(list, func(f *operatorv1.Finding) bool { return f.GetRule() == test.rule })
		if i < 0 {
			t.Errorf("%s: no %s in %v", name, test.rule, list)
			continue
		}
		f := list[i]
		said[f.GetRule()] = true
		if k := slices.IndexFunc(diagnosis.Rules, func(r diagnosis.Rule) bool { return r.Name == f.GetRule() }); k < 0 || diagnosis.Rules[k].Severity != f.GetSeverity() {
			t.Errorf("%s: the list of rules does not have %s with the severity %s", name, f.GetRule(), f.GetSeverity())
		}
		if !strings.Contains(f.GetCause(), test.cause) || !strings.Contains(f.GetChange()+" "+f.GetNext(), test.doing) || f.GetCount() == 0 && name != "an event storm" || f.GetSubject() == "" {
			t.Errorf("%s: %v\nwant the cause %q and the advice %q", name, f, test.cause, test.doing)
		}
	}
	for _, rule := range diagnosis.Rules {
		if !said[rule.Name] {
			t.Errorf("no fault is found by the rule %s", rule.Name)
		}
	}
}

// What looks like a fault and is none raises nothing.
func TestLookalikes(t *testing.T) {
	tests := map[string]diagnosis.Fleet{
		"a rollback that an operator asked for":   hosted(&operatorv1.Worker{Id: "thumbs", State: "running", Desired: "running", UpdatedAt: before(time.Hour), Changed: "rollback (by ada)"}),
		"a canary that was rolled back last week": hosted(&operatorv1.Worker{Id: "thumbs", State: "running", Desired: "running", UpdatedAt: before(170 * time.Hour), Changed: "the canary is rolled back: it failed"}),
		"a unit that gets on": fleet(process(func(p *operatorv1.Process) {
			p.Units[1].Progress, p.Units[1].ProgressGap = before(5*time.Minute), durationpb.New(2*time.Minute)
		})),
		"a server whose requests take a minute": fleet(process(func(p *operatorv1.Process) {
			p.Servers = []*operatorv1.Server{{Name: "http", InFlight: 12}}
			p.Units[0].Progress = before(90 * time.Second)
		})),
		"a server that panicked three times in a day": fleet(process(func(p *operatorv1.Process) {
			p.Servers = []*operatorv1.Server{{Name: "http", Panics: 3, Panicking: before(20 * time.Hour)}}
		})),
		"a server that panicked twice": fleet(process(func(p *operatorv1.Process) {
			p.Servers = []*operatorv1.Server{{Name: "http", Panics: 2}}
		})),
		"a leader that waits for its turn": fleet(process(unit("w", "Pending", "another process leads"), func(p *operatorv1.Process) {
			p.Units[2].Children[0].Since = before(time.Hour)
		})),
		"a minute of work": fleet(process(func(p *operatorv1.Process) {
			p.Processor = &operatorv1.Processor{Percent: 100, Most: 800, Since: before(time.Minute)}
		})),
		"a service under load": fleet(process(func(p *operatorv1.Process) {
			p.Processor = &operatorv1.Processor{Percent: 340, Most: 800, Since: before(time.Hour)}
		})),
		"work that shows that it gets on": fleet(process(func(p *operatorv1.Process) {
			p.Processor = &operatorv1.Processor{Percent: 100, Most: 800, Since: before(time.Hour)}
			p.Units[1].Progress = before(10 * time.Second)
		})),
		"a child that was stopped a moment ago":  fleet(process(stoppedChild(14*time.Minute, "supervisor"))),
		"a unit that no supervisor has":          fleet(process(stoppedChild(time.Hour, "restarter"))),
		"a probe that failed twice":              {Now: now, Processes: []*operatorv1.Process{process()}, Downs: downs("readiness/db", 2)},
		"a check of the App that was suspended":  {Now: now, Processes: []*operatorv1.Process{process()}, Downs: downs("readiness/lifecycle", 5)},
		"a flapping probe that is not critical":  {Now: now, Processes: []*operatorv1.Process{process()}, Downs: downs("readiness/other", 5)},
		"one suspended process of two":           fleet(process(suspend), process(func(p *operatorv1.Process) { p.Id = "web-2" })),
		"a reaction that is tried a second time": {Now: now, Hooks: []diagnosis.Hook{{Type: "order", Name: "invoice", Failing: 1, Failures: 1}}},
		"a unit that finished its work": fleet(process(func(p *operatorv1.Process) {
			p.Units[1].Status, p.Units[1].Progress = "Finished", before(time.Hour)
		})),
		"goroutines of a burst": fleet(process(func(p *operatorv1.Process) {
			p.Goroutines, p.GoroutineGrowth = 9000, &operatorv1.Growth{Since: before(90 * time.Second), From: 40}
		})),
		"goroutines of a day that begins": fleet(process(func(p *operatorv1.Process) {
			p.Goroutines, p.GoroutineGrowth = 1900, &operatorv1.Growth{Since: before(time.Hour), From: 1000}
		})),
		"a cache that fills": fleet(process(func(p *operatorv1.Process) {
			p.MemoryBytes, p.MemoryGrowth = 200<<20, &operatorv1.Growth{Since: before(time.Hour), From: 100 << 20}
		})),
		"all is well":                         fleet(process()),
		"a unit that finished on purpose":     fleet(process(unit("migrate", "Finished", ""))),
		"a unit that was stopped":             fleet(process(unit("old", "Stopped", ""))),
		"a slow start within its time":        fleet(process(in("starting", 90*time.Second, "unit cache"))),
		"a start that has just begun":         fleet(process(in("starting", 0, ""))),
		"a long drain":                        fleet(process(in("draining", 29*time.Second, "drainer streams"))),
		"a stop within the watchdog's margin": fleet(process(in("stopping", 31*time.Second, "hook flush"))),
		"one restart":                         fleet(process(restarted("poller", time.Second))),
		"two restarts":                        fleet(process(restarted("poller", time.Second, time.Minute))),
		"restarts of an hour ago":             fleet(process(restarted("poller", time.Hour, 61*time.Minute, 62*time.Minute, 63*time.Minute))),
		"restarts of three different units":   fleet(process(restarted("a", time.Second), restarted("b", time.Second), restarted("c", time.Second))),
		"a unit in its backoff":               fleet(process(unit("w", "Pending", "backoff after: boom"))),
		"a probe that is not critical":        fleet(process(probe("down", "connection refused", false))),
		"a probe before its first run":        fleet(process(probe("unknown", "", true))),
		"a probe that fails in a drain":       fleet(process(in("draining", time.Second, ""), probe("down", "connection refused", true))),
		"a suspension for a deployment": fleet(process(func(p *operatorv1.Process) {
			p.Suspended = "deploy"
			p.Probes[1].State, p.Probes[1].Since = "down", before(time.Minute)
		})),
		"a reload that was refused and then worked": fleet(process(func(p *operatorv1.Process) {
			p.Steps = []*operatorv1.Step{{Kind: "reload", Name: "config", Result: "failed"}, {Kind: "reload", Name: "config", Result: "ok"}}
		})),
		"a rolling restart":                          fleet(process(), process(func(p *operatorv1.Process) { p.Id, p.Version, p.StartedAt = "web-2", "2", before(time.Minute) })),
		"two services with two versions":             fleet(process(), process(func(p *operatorv1.Process) { p.Id, p.Service, p.Version = "api-1", "api", "2" })),
		"memory at two thirds":                       fleet(process(func(p *operatorv1.Process) { p.MemoryBytes, p.MemoryLimitBytes = 66<<20, 100<<20 })),
		"a clock that is a little wrong":             fleet(process(func(p *operatorv1.Process) { p.SaidAt = before(10 * time.Second) })),
		"processes that ended as they were asked to": {Now: now, Ends: []*operatorv1.Event{{Kind: "exit", To: "clean", At: before(time.Minute), Service: "web", Process: "a"}, {Kind: "exit", To: "clean", At: before(time.Minute), Service: "web", Process: "b"}, {Kind: "exit", To: "clean", At: before(time.Minute), Service: "web", Process: "c"}}},
		"a bad end of yesterday":                     ended("exit", "failed", 25*time.Hour, "boom"),
		"a hosted worker that is stopped":            hosted(&operatorv1.Worker{Id: "w", State: "stopped", Desired: "stopped", Backlog: 9000}),
		"a hosted worker that is being deployed":     hosted(&operatorv1.Worker{Id: "w", State: "deploying", Desired: "running", UpdatedAt: before(time.Second)}),
		"a workflow with all records readable":       {Now: now, Workflows: []*operatorv1.Definition{{Type: "order", Total: 100}}},
	}
	if len(tests) < 21 {
		t.Errorf("only %d lookalikes", len(tests))
	}
	for name, f := range tests {
		if list := diagnosis.Diagnose(f); len(list) > 0 {
			t.Errorf("%s raises %v", name, list)
		}
	}
}

// The worst findings come first.
func TestOrder(t *testing.T) {
	f := fleet(process(probe("down", "refused", true)), process(func(p *operatorv1.Process) { p.Id, p.MemoryBytes, p.MemoryLimitBytes = "web-2", 99, 100 }))
	f.Away = []diagnosis.Away{{Name: "NATS", Since: now.Add(-time.Hour)}}
	var rules []string
	for _, x := range diagnosis.Diagnose(f) {
		rules = append(rules, x.GetRule())
	}
	if got := fmt.Sprint(rules); got != "[dependency-away probe-down memory-high]" {
		t.Errorf("the order is %s", got)
	}
}

// A finding about a process has the time at which it was found first, also when its rule knows none:
// it is kept from one announcement to the next.
func TestSinceWhen(t *testing.T) {
	wrong := func(p *operatorv1.Process) {
		p.Descriptors, p.DescriptorLimit, p.MemoryBytes, p.MemoryLimitBytes = 950, 1024, 99<<20, 100<<20
		p.Suspect = "two processes announce themselves under this id"
		p.Steps = []*operatorv1.Step{{Kind: "reload", Name: "config", Result: "failed"}}
	}
	announced := func(ago time.Duration, old *operatorv1.Process, change ...func(*operatorv1.Process)) *operatorv1.Process {
		p := process(change...)
		p.SeenAt, p.SaidAt = before(ago), before(ago)
		p.Findings = diagnosis.Process(p, now.Add(-ago))
		diagnosis.Date(p, old)
		return p
	}
	well := announced(time.Hour, nil)
	first := announced(30*time.Minute, well, wrong)
	later := announced(time.Second, first, wrong)
	list := diagnosis.Process(later, now)
	if len(list) != 4 {
		t.Fatalf("the findings are %v", list)
	}
	for _, f := range list {
		if !f.GetSince().AsTime().Equal(now.Add(-30 * time.Minute)) {
			t.Errorf("%s is found since %v", f.GetRule(), f.GetSince().AsTime())
		}
	}
}

// The counts and the reason that every view shows.
func TestView(t *testing.T) {
	p := new(operatorv1.Process)
	diagnosis.FromStatus(p, lifecycle.Status{
		Report: lifecycle.Report{Phase: lifecycle.PhaseRunning},
		Units: []worker.State{
			{Name: "http", Status: worker.StatusRunning}, {Name: "migrate", Status: worker.StatusFinished},
			{Name: "pool", Status: worker.StatusRunning, Children: []worker.State{{Name: "w", Status: worker.StatusFailed, Restarts: 2}}},
		},
		Probes: []health.Status{{Plane: "readiness", Name: "db", State: health.Down, Critical: true, Error: "connection refused"}},
	})
	if c := p.GetCounts(); c.GetAll() != 4 || c.GetRunning() != 2 || c.GetFinished() != 1 || c.GetFailed() != 1 || c.GetRestarts() != 2 {
		t.Errorf("the counts are %v", c)
	}
	if p.GetReason() != "probe db is down: connection refused" {
		t.Errorf("the reason is %q", p.GetReason())
	}
}

// One /statusz shows a crash loop too.
func TestStatusAlone(t *testing.T) {
	for restarts, want := range map[int]int{9: 1, 1: 0} {
		p := &operatorv1.Process{Id: "web-1"}
		s := lifecycle.Status{At: now, Report: lifecycle.Report{Phase: lifecycle.PhaseRunning}, Units: []worker.State{{
			Name: "poller", Status: worker.StatusRunning, Restarts: restarts, UpdatedAt: now.Add(-time.Second), Exit: &worker.Exit{Error: "connection refused"},
		}}}
		diagnosis.Alone(p, s)
		list := diagnosis.Process(p, now)
		if len(list) != want || want == 1 && (list[0].GetRule() != "crash-loop" || !strings.Contains(list[0].GetCause(), "poller was started again 9 times") || !strings.HasSuffix(list[0].GetCause(), "connection refused")) {
			t.Errorf("%d restarts: %v", restarts, list)
		}
	}
}

// Restarts that operators have asked for do not count as a crash loop.
func TestOperatorsRestartsAreNoCrashLoop(t *testing.T) {
	p := process(restarted("poller", time.Second, 2*time.Second, 3*time.Second, 4*time.Second))
	if list := diagnosis.Process(p, now); len(list) == 0 || list[0].GetRule() != "crash-loop" {
		t.Errorf("four failures are %v", list)
	}
	for _, r := range p.GetRestarts() {
		r.Who = "ada"
	}
	if list := diagnosis.Process(p, now); len(list) != 0 {
		t.Errorf("four restarts by an operator are %v", list)
	}
}

// The backlog of a hosted worker is the worker's, and that of a worker that should not run is none.
func TestBacklogOfAHostedWorker(t *testing.T) {
	for _, test := range []struct {
		consumer, want string
		worker         *operatorv1.Worker
	}{
		{"HOST_w-thumbs", "worker/thumbs", &operatorv1.Worker{Id: "thumbs", Desired: "Running"}},
		{"HOST_w-thumbs", "", &operatorv1.Worker{Id: "thumbs", Desired: "Stopped"}},
		{"HOST_w-other", "", &operatorv1.Worker{Id: "thumbs", Desired: "Running"}},
		{"HOST_g-images", "worker/thumbs", &operatorv1.Worker{Id: "thumbs", Desired: "Running", Group: "images"}},
		{"HOST_t4-shop-images", "worker/thumbs", &operatorv1.Worker{Id: "thumbs", Desired: "Running", Group: "images", Spec: &operatorv1.WorkerSpec{Tenant: "shop"}}},
	} {
		f := storing(diagnosis.Store{Stalled: []diagnosis.Backlog{{Stream: "WORK", Consumer: test.consumer, Host: "HOST", Left: 3, Since: now.Add(-time.Hour)}}})
		f.Workers = []*operatorv1.Worker{test.worker}
		got := ""
		for _, x := range diagnosis.Diagnose(f) {
			if x.GetRule() == "consumer-stalled" {
				got = x.GetSubject()
			}
		}
		if got != test.want {
			t.Errorf("the consumer %s of %v: the subject is %q, want %q", test.consumer, test.worker, got, test.want)
		}
	}
}

// Only what an App would restart is offered.
func TestRestartableUnits(t *testing.T) {
	run := func(status worker.Status) []worker.State {
		return []worker.State{{Name: "r", Kind: "func", Status: status}}
	}
	s := lifecycle.Status{Report: lifecycle.Report{Phase: lifecycle.PhaseRunning}, Units: []worker.State{
		{Name: "plain", Kind: "func", Status: worker.StatusRunning},
		{Name: "r", Kind: "restarter", Status: worker.StatusRunning, Children: run(worker.StatusPending)},
		{Name: "r2", Kind: "restarter", Status: worker.StatusStopping, Children: run(worker.StatusStopping)},
		{Name: "r3", Kind: "restarter", Status: worker.StatusFinished, Children: run(worker.StatusFinished)},
		{Name: "pool", Kind: "supervisor", Status: worker.StatusRunning, Children: []worker.State{
			{Name: "w1", Kind: "func", Status: worker.StatusFailed}, {Name: "w2", Kind: "process", Status: worker.StatusStopping},
			{Name: "inner", Kind: "dynamic", Status: worker.StatusRunning, Children: []worker.State{{Name: "w3", Kind: "func", Status: worker.StatusRunning}}},
		}},
	}}
	for phase, want := range map[lifecycle.Phase]string{lifecycle.PhaseRunning: "[r pool/w1 pool/inner pool/inner/w3]", lifecycle.PhaseDraining: "[]"} {
		s.Report.Phase = phase
		p := new(operatorv1.Process)
		diagnosis.FromStatus(p, s)
		var got []string
		var visit func(list []*operatorv1.Unit, above string)
		visit = func(list []*operatorv1.Unit, above string) {
			for _, u := range list {
				if u.GetRestartable() {
					got = append(got, above+u.GetName())
				}
				visit(u.GetChildren(), above+u.GetName()+"/")
			}
		}
		visit(p.GetUnits(), "")
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", phase, got, want)
		}
	}
}

// A unit that was ended by force is one finding, also when the supervisors above it were too.
func TestOneFindingForADeafUnit(t *testing.T) {
	killed := func(name string) *operatorv1.Event {
		return &operatorv1.Event{Kind: "killed", Name: name, To: "Killed", Process: "web-1", At: before(time.Minute), Cause: "deaf: did not stop when asked and was killed"}
	}
	list := diagnosis.Diagnose(diagnosis.Fleet{Now: now, Killed: []*operatorv1.Event{killed("deaf"), killed("children")}})
	if len(list) != 1 || !strings.Contains(list[0].GetCause(), "unit deaf did not end") {
		t.Errorf("the findings are %v", list)
	}
}
