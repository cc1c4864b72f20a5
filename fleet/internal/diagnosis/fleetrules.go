package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Classes of the end of a process, as package presence has them: the To of an event "exit" or
// "lost".
const (
	EndClean  = "clean"  // it ended as it was asked to, or finished
	EndFailed = "failed" // a unit or a hook failed
	EndHung   = "hung"   // a part did not return in its time and was abandoned
	EndCut    = "cut"    // requests were cut or hooks skipped: the time was too short
	EndLost   = "lost"   // it disappeared without a word
	EndOOM    = "oom"    // the same, and its memory was at its limit, or the kernel is known to have killed it
	EndForced = "forced" // the same, in the middle of a stop

	// By what the platform knows:
	EndPanicked = "panicked" // it ended with the exit status of a panic
	EndKilled   = "killed"   // a signal ended it, and not because memory ran out
	EndEvicted  = "evicted"  // its host had to give it up
)

// Bad reports whether an end is one that an operator wants to know of.
func Bad(e *operatorv1.Event) bool { return e.GetTo() != EndClean }

// ends applies the rules about processes that have ended.
func ends(f Fleet) (list []*operatorv1.Finding) {
	failed := map[string][]*operatorv1.Event{} // by service, within endsTime
	dropped := map[string]*operatorv1.Event{}
	for _, e := range f.Ends {
		if f.Now.Sub(e.GetAt().AsTime()) > endShown {
			continue
		}
		switch {
		case e.GetKind() == "dropped":
			if d := dropped[e.GetProcess()]; d == nil {
				dropped[e.GetProcess()] = &operatorv1.Event{Process: e.GetProcess(), At: e.GetAt(), Count: e.GetCount()}
			} else {
				d.Count += e.GetCount()
			}
		case Bad(e) && f.Now.Sub(e.GetAt().AsTime()) <= endsTime:
			failed[e.GetService()] = append(failed[e.GetService()], e)
		}
	}
	for _, service := range slices.Sorted(maps.Keys(failed)) {
		all := failed[service]
		if len(all) < loopEnds {
			continue
		}
		last := all[len(all)-1]
		list = append(list, found("crash-loop", "service/"+service, all[0].GetAt().AsTime(), len(all)).
			because("%d processes of %s ended badly within %v; the last one: %s",
				len(all), service, endsTime, cmp.Or(last.GetCause(), "no reason is known")).
			do("", Command("events --service %s --kind exit,lost", service)))
	}
	for _, e := range f.Ends {
		if e.GetKind() == "dropped" || f.Now.Sub(e.GetAt().AsTime()) > endShown {
			continue
		}
		if one := end(e); one != nil {
			list = append(list, one)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(dropped)) {
		d := dropped[id]
		list = append(list, found("journal-dropped", "process/"+id, d.GetAt().AsTime(), int(d.GetCount())).
			because("%d events of this process are not in the journal: it had more than the journal takes", d.GetCount()).
			do("", Command("events --process %s", id)))
	}
	return list
}

// badEnds are the ends that a rule is about.
var badEnds = map[string]struct {
	rule   string
	cause  string // when the event has none
	change string
}{
	EndOOM: {
		rule:   "out-of-memory",
		cause:  "it disappeared with its memory at the limit",
		change: "resources.limits.memory, or what the process keeps",
	},
	EndForced: {
		rule:   "grace-too-short",
		cause:  "it was killed in the middle of its stop",
		change: "terminationGracePeriodSeconds: more than the budget of a stop",
	},
	EndLost:   {rule: "process-lost", cause: "it disappeared without a word"},
	EndKilled: {rule: "process-lost", cause: "it disappeared without a word"},
	EndEvicted: {
		rule:   "process-evicted",
		cause:  "its host had to give it up",
		change: "resources.requests, so that the scheduler knows what the process needs",
	},
	EndHung: {
		rule:   "stop-hung",
		change: "lifecycle.shutdown_grace, when the part needs more time",
	},
	EndCut:      {rule: "grace-too-short", change: "lifecycle.shutdown_grace"},
	EndPanicked: {rule: "process-failed"},
	EndFailed:   {rule: "process-failed"},
}

// end applies the rules about the end of one process.
func end(e *operatorv1.Event) *operatorv1.Finding {
	bad, ok := badEnds[e.GetTo()]
	if !ok {
		return nil
	}
	cause := cmp.Or(e.GetCause(), bad.cause)
	switch e.GetTo() {
	case EndPanicked:
		cause = "it panicked" + after(cause)
	case EndFailed:
		cause = fmt.Sprintf("it ended with exit status %d%s", e.GetExitStatus(), after(cause))
	}
	return found(bad.rule, "process/"+e.GetProcess(), e.GetAt().AsTime(), 1).
		because("%s", cause).
		do(bad.change, Command("describe %s", e.GetProcess()))
}

// killed applies the rule about workers that did not end when they were asked to.
func killed(events []*operatorv1.Event) (list []*operatorv1.Finding) {
	all := map[[2]string]*operatorv1.Finding{}
	for _, e := range events {
		key := [2]string{e.GetProcess(), e.GetName()}
		if f := all[key]; f != nil {
			f.Count++
			continue
		}
		all[key] = found("worker-ignores-stop", "process/"+e.GetProcess(), e.GetAt().AsTime(), 1).
			because("unit %s did not end when it was asked to, and was ended by force%s", e.GetName(), after(e.GetCause())).
			do("the grace of the worker, when it needs more time", Command("events --process %s", e.GetProcess()))
		list = append(list, all[key])
	}
	return list
}

// skew applies the rules that compare processes.
func skew(f Fleet) (list []*operatorv1.Finding) {
	versions := map[string]map[string]int{}
	youngest := map[string]*timestamppb.Timestamp{}
	for _, p := range f.Processes {
		if versions[p.GetService()] == nil {
			versions[p.GetService()] = map[string]int{}
		}
		versions[p.GetService()][p.GetVersion()]++
		youngest[p.GetService()] = newest(youngest[p.GetService()], p.GetStartedAt())
	}
	for _, service := range slices.Sorted(maps.Keys(versions)) {
		since := youngest[service].AsTime()
		if len(versions[service]) < 2 || f.Now.Sub(since) <= skewTime {
			continue
		}
		var parts []string
		for _, v := range slices.Sorted(maps.Keys(versions[service])) {
			parts = append(parts, fmt.Sprintf("%d with %s", versions[service][v], cmp.Or(v, "no version")))
		}
		list = append(list, found("version-skew", "service/"+service, since, len(versions[service])).
			because("its processes have different versions: %s", strings.Join(parts, ", ")).
			do("", Command("processes list --service %s", service)))
	}
	for _, p := range f.Processes {
		if off := clock(p); off.Abs() > clockTime {
			list = append(list, found("clock-skew", "process/"+p.GetId(), p.GetSeenAt().AsTime(), 1).
				because("the clock of %s differs from the broker's by %v", cmp.Or(p.GetHost(), "its host"), off.Round(time.Second)).
				do("the host's time service", Command("describe %s", p.GetId())))
		}
	}
	return list
}

// clock returns by how much a process's clock is ahead of the broker's.
func clock(p *operatorv1.Process) time.Duration {
	if p.GetSaidAt() == nil || p.GetSeenAt() == nil {
		return 0
	}
	return p.GetSaidAt().AsTime().Sub(p.GetSeenAt().AsTime())
}

// hosted applies the rules about hosted workers.
func hosted(f Fleet) (list []*operatorv1.Finding) {
	for _, w := range f.Workers {
		subject, updated := "worker/"+w.GetId(), w.GetUpdatedAt().AsTime()
		if n := w.GetDeadLetters(); n > 0 {
			list = append(list, found("dead-letters", subject, updated, int(n)).
				because("%d messages could not be handled; the oldest: %s",
					n, cmp.Or(f.Letters[w.GetId()], "its reason is not known")).
				do("", Command("dead-letters %s", w.GetId())))
		}
		state, desired := strings.ToLower(w.GetState()), strings.ToLower(w.GetDesired())
		switch {
		case state == "failed":
			list = append(list, found("worker-failed", subject, updated, 1).
				because("it has failed%s", after(w.GetError())).
				do("", Command("workers get %s", w.GetId())))
		case desired == "running" && state != "running" && f.Now.Sub(updated) > backlogTime:
			list = append(list, found("worker-failed", subject, updated, int(w.GetBacklog())).
				because("it should run and is %s; %d messages wait%s", w.GetState(), w.GetBacklog(), after(w.GetError())).
				do("", "lifecyclectl workers recover"))
		}
	}
	return list
}

// entities applies the rules about workflows.
func entities(f Fleet) (list []*operatorv1.Finding) {
	for _, d := range f.Workflows {
		if n := d.GetDegraded(); n > 0 {
			list = append(list, found("entity-degraded", "workflow/"+d.GetType(), time.Time{}, int(n)).
				because("%d stored records cannot be read", n).
				do("", Command("list %s", d.GetType())))
		}
	}
	for _, s := range f.Stuck {
		list = append(list, found("entity-stuck", "workflow/"+s.Type, s.Since, s.Count).
			because("%d entities have been %s for longer than %v; the oldest is %s", s.Count, s.Phase, s.Limit, s.ID).
			do("", Command("history %s %s", s.Type, s.ID)))
	}
	for _, h := range f.Hot {
		list = append(list, found("entity-hot", "workflow/"+h.Type, h.Since, h.Writes).
			because("entity %s was written %d times within a minute", h.ID, h.Writes).
			do("", Command("history %s %s", h.Type, h.ID)))
	}
	return list
}
