package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/endclass"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Severities of findings.
const (
	Error   = "error"
	Warning = "warning"
)

// Times and numbers from which on a rule finds something.
const (
	loopRestarts  = 3                // restarts of one unit within loopTime are a crash loop
	loopTime      = 5 * time.Minute  //
	loopEnds      = 3                // failed ends of one service's processes within endsTime are one too
	endsTime      = 10 * time.Minute //
	startTime     = 2 * time.Minute  // a start that waits longer is blocked
	stopMargin    = 2 * time.Second  // a stop may exceed its budget by the watchdog's margin
	suspendedTime = 15 * time.Minute // a suspension that lasts longer is forgotten,
	suspendedAll  = time.Minute      // and one of all processes of a service
	flapTimes     = 3                // so many failures of one probe within FlapTime are a flapping one
	FlapTime      = 5 * time.Minute  // which is how far back the probes are looked at
	backoffTime   = 2 * time.Minute  // a unit that waits longer until it is started again does not do its work
	stoppedTime   = 15 * time.Minute // a child that is stopped for longer is forgotten
	panicTime     = 5 * time.Minute  // three panics of one server's handlers within it
	hookFailures  = 3                // a reaction that has failed so often fails again and again
	skewTime      = 15 * time.Minute // a rollout may take this long
	clockTime     = 30 * time.Second // a clock may differ by this much
	memoryShare   = 90               // percent of the limit
	endShown      = time.Hour        // how long a bad end is shown
	canaryShown   = 24 * time.Hour   // or until the worker is changed again
	backlogTime   = 5 * time.Minute  // a worker that should run and does not, with messages waiting
)

// Rule is one thing that may be wrong.
type Rule struct {
	Name     string
	Severity string // of its findings
	Means    string // in one sentence
}

// severity returns the severity of a rule's findings.
func severity(rule string) string {
	i := slices.IndexFunc(Rules, func(r Rule) bool { return r.Name == rule })
	return Rules[i].Severity
}

// Rules lists all rules.
var Rules = []Rule{
	{"dependency-away", Error, "A service behind the operator, such as NATS, does not answer; what is shown may be old."},
	{"store-refuses-writes", Error, "NATS answers reads and takes no writes: its disk is full, for example."},
	{"store-replaced", Error, "NATS has lost streams or buckets: they are missing, or were made anew, empty."},
	{"stream-full", Error, "A stream or a bucket that refuses writes when it is full has less than a tenth left."},
	{"consumer-stalled", Error, "A consumer, such as the one of a hosted worker, finishes nothing while messages wait."},
	{"backlog-grows", Warning, "The least that waits for a consumer has grown from each half minute to the next, for two minutes."},
	{"crash-loop", Error, "A unit, or the processes of a service, fail and start again and again."},
	{"unit-failed", Error, "A unit has failed and is not started again, or waits for longer than two minutes until it is."},
	{"unit-stopped", Warning, "A child of a supervisor was stopped more than 15 minutes ago, and was not started again."},
	{"worker-ignores-stop", Error, "A worker did not end when it was asked to, and was ended by force."},
	{"start-blocked", Error, "A start waits for longer than two minutes."},
	{"probe-slow", Error, "A probe does not answer within its timeout."},
	{"probe-down", Error, "A probe that decides on readiness fails."},
	{"probe-flaps", Error, "A probe that decides on readiness fails again and again, and passes in between."},
	{"requests-panic", Error, "Handlers of a server have panicked at least three times within five minutes."},
	{"stop-hung", Error, "A stop takes longer than its budget, or a hook did not return within its time."},
	{"grace-too-short", Error,
		"A stop had too little time: requests were cut, hooks were skipped, or the process was killed in the middle."},
	{"out-of-memory", Error, "The kernel killed a process or a worker because memory ran out, or probably did."},
	{"process-lost", Error, "A process disappeared without a word: it was killed, it is frozen, or its network is cut."},
	{"process-failed", Error, "A process ended with an error, or with a panic."},
	{"process-evicted", Error, "The host of a process ran out of a resource and gave the process up."},
	{"unit-stands-still", Error,
		"A unit that gave signs of progress gives none any more, or a server finishes none of its requests: it may be in a deadlock."},
	{"goroutines-grow", Error, "The goroutines of a process only grow: it leaks them."},
	{"memory-grows", Warning, "The memory of a process only grows."},
	{"descriptors-high", Error, "The open files and connections of a process are near its limit."},
	{"threads-high", Warning, "A process has more than a thousand threads: calls block them and do not return."},
	{"processor-busy", Warning,
		"A process uses one processor, or all that it may, without a pause for two minutes: it may be in a busy loop."},
	{"throttled", Warning, "A process waits for processor time, because the limit of its container is used up."},
	{"memory-high", Warning, "The memory of a process is near its limit."},
	{"suspended-long", Warning, "Readiness has been suspended for longer than 15 minutes, or that of all processes of a service for a minute."},
	{"reload-refused", Warning, "The last reload failed; the old configuration is still in use."},
	{"version-skew", Warning, "The processes of a service have different versions, and no rollout is in progress."},
	{"clock-skew", Warning, "The clock of a host differs from the broker's."},
	{"journal-dropped", Warning, "Events are missing in the journal: a process had too many."},
	{"dead-letters", Warning, "A hosted worker failed to handle messages, or a hook of a workflow gave up reactions."},
	{"hook-fails", Warning, "Reactions of a hook fail again and again; they will be dead letters."},
	{"canary-rolled-back", Warning, "The newest version of a hosted worker failed as a canary and was rolled back: the version before it runs."},
	{"worker-failed", Error, "A hosted worker does not do what it should."},
	{"entity-degraded", Error, "Stored records cannot be read."},
	{"entity-stuck", Warning, "Entities have not left a phase for longer than allowed."},
	{"entity-hot", Warning, "An entity is written again and again."},
	{"announcement-suspect", Error,
		"Another client has written the announcement of a process, or two processes have one id."},
	{"announcement-unreadable", Warning, "The announcement of a process cannot be read."},
}

// Fleet is what the rules look at. A part that is not known stays empty.
type Fleet struct {
	Now       time.Time
	Processes []*operatorv1.Process
	Ends      []*operatorv1.Event // "exit" and "lost" of the last hour, and "dropped", oldest first
	Downs     []*operatorv1.Event // of probes that went down within the last five minutes, newest first
	Killed    []*operatorv1.Event // units that were ended by force in the last hour
	Workers   []*operatorv1.Worker
	Letters   map[string]string // by worker: the reason of its oldest dead letter
	Workflows []*operatorv1.Definition
	Hooks     []Hook
	Stuck     []Stuck
	Hot       []Hot
	Away      []Away
	Store     Store
}

// Hook is a hook of a workflow.
type Hook struct {
	Type, Name        string
	Failing, Failures int // reactions that are tried again, and how often the worst has failed
	DeadLetters       int
}

// Away is a dependency that does not answer.
type Away struct {
	Name  string
	Since time.Time
	Err   string
}

// Stuck is a phase with entities that have been in it for too long.
type Stuck struct {
	Type, Phase, ID string // of the oldest one
	Since           time.Time
	Count           int
	Limit           time.Duration
}

// Hot is an entity that is written often.
type Hot struct {
	Type, ID string
	Since    time.Time
	Writes   int // within a minute
}

// Diagnose applies all rules. The worst findings come first, and of equal ones the
// newest. Arrange groups them.
func Diagnose(f Fleet) []*operatorv1.Finding {
	var list []*operatorv1.Finding
	for _, a := range f.Away {
		list = append(list, found("dependency-away", "dependency/"+a.Name, a.Since, 1).
			because("%s does not answer: %s", a.Name, a.Err).
			do("", "lifecyclectl doctor"))
	}
	for _, p := range f.Processes {
		list = append(list, Process(p, f.Now)...)
	}
	return Sort(slices.Concat(list, flaps(f), ends(f), killed(f.Killed), suspended(f), skew(f), hosted(f), entities(f), stored(f)))
}

// Sort puts the worst findings first, and of equal ones the newest.
func Sort(list []*operatorv1.Finding) []*operatorv1.Finding {
	slices.SortStableFunc(list, func(a, b *operatorv1.Finding) int {
		return cmp.Or(
			cmp.Compare(a.GetSeverity(), b.GetSeverity()),
			cmp.Compare(roots[b.GetRule()], roots[a.GetRule()]),
			b.GetSince().AsTime().Compare(a.GetSince().AsTime()),
			cmp.Compare(a.GetSubject(), b.GetSubject()),
		)
	})
	return list
}

// finding is a Finding under construction.
type finding struct{ *operatorv1.Finding }

func found(rule, subject string, since time.Time, count int) finding {
	return finding{&operatorv1.Finding{
		Rule:     rule,
		Severity: severity(rule),
		Subject:  subject,
		Since:    Stamp(since),
		Count:    int64(count),
	}}
}

// because says what is wrong.
func (f finding) because(format string, args ...any) finding {
	f.Cause = fmt.Sprintf(format, args...)
	return f
}

// do completes the finding with what to change and the next command.
func (f finding) do(change, next string) *operatorv1.Finding {
	f.Change, f.Next = change, next
	return f.Finding
}

// Command returns a command line of lifecyclectl that people copy into a shell. The words
// come from other programs: no shell acts on them, and a dash makes none of them a flag.
func Command(form string, words ...string) string {
	quoted, dash := make([]any, len(words)), false
	for i, w := range words {
		quoted[i], dash = text.Shell(w), dash || strings.HasPrefix(w, "-")
	}
	if dash && !valued.MatchString(form) {
		form = strings.ReplaceAll(form, " %s", "") + " --" + strings.Repeat(" %s", len(words))
	}
	return "lifecyclectl " + fmt.Sprintf(form, quoted...)
}

// valued matches a flag whose value is a word: it may begin with a dash.
var valued = regexp.MustCompile(`--[a-z]+ %s`)

// Process applies the rules about one process that announces itself, or whose /statusz
// was read. A finding whose rule knows no time has the one of p's own findings.
func Process(p *operatorv1.Process, now time.Time) []*operatorv1.Finding {
	list := process(p, now)
	for _, f := range list {
		if f.GetSince() == nil {
			f.Since = sinceOf(f, p.GetFindings())
		}
	}
	return list
}

// Date gives each finding of a new announcement that has no time the time of the announcement, or the
// one that it had in the announcement before.
func Date(p, before *operatorv1.Process) {
	for _, f := range p.GetFindings() {
		if f.GetSince() == nil {
			f.Since = cmp.Or(sinceOf(f, before.GetFindings()), p.GetSeenAt())
		}
	}
}

// sinceOf returns since when findings say the same as f, nil when they do not.
func sinceOf(f *operatorv1.Finding, list []*operatorv1.Finding) *timestamppb.Timestamp {
	for _, x := range list {
		if x.GetRule() == f.GetRule() && x.GetSubject() == f.GetSubject() {
			return x.GetSince()
		}
	}
	return nil
}

func process(p *operatorv1.Process, now time.Time) (list []*operatorv1.Finding) {
	subject := "process/" + p.GetId()
	describe, get := Command("describe %s", p.GetId()), Command("processes get %s -o json", p.GetId())
	add := func(f *operatorv1.Finding) { list = append(list, f) }
	if s := p.GetSuspect(); s != "" {
		add(found("announcement-suspect", subject, time.Time{}, 1).
			because("%s", s).
			do("presence.Config.ID, which no two processes may share; the NATS permissions, when no second process has it", get))
		if p.GetPhase() == "" {
			return list // nothing is known of it
		}
	}
	if p.GetPhase() == "" {
		add(found("announcement-unreadable", subject, time.Time{}, 1).
			because("%s", cmp.Or(p.GetReason(), "the announcement has no phase")).
			do("", get))
		return list
	}
	list = append(list, units(p, now)...)
	list = append(list, starting(p, now)...)
	list = append(list, stopping(p, now)...)
	list = append(list, probes(p)...)
	if since := suspendedSince(p); p.GetSuspended() != "" && now.Sub(since) > suspendedTime {
		add(found("suspended-long", subject, since, 1).
			because("readiness is suspended: %s", p.GetSuspended()).
			do("", Command("processes resume %s", p.GetId())))
	}
	used, limit := p.GetMemoryBytes(), p.GetMemoryLimitBytes()
	if limit > 0 && float64(used)*100 >= float64(limit)*memoryShare {
		add(found("memory-high", subject, time.Time{}, 1).
			because("it uses %s of its limit of %s", size(used), size(limit)).
			do(fmt.Sprintf("resources.limits.memory (now %s)", size(limit)), describe))
	}
	list = append(list, usage(p, now)...)
	for _, s := range LastReloads(p.GetSteps()) {
		if s.GetResult() == "failed" || s.GetResult() == "panicked" {
			add(found("reload-refused", subject, time.Time{}, 1).
				because("reload %s was refused%s; the old configuration is still in use", s.GetName(), after(s.GetError())).
				do("", describe))
		}
	}
	return list
}

// units applies the rules about the units of a process.
func units(p *operatorv1.Process, now time.Time) (list []*operatorv1.Finding) {
	subject, describe := "process/"+p.GetId(), Command("describe %s", p.GetId())
	looping := restarts(p, now)
	for unit, r := range looping {
		list = append(list, found("crash-loop", subject, r.since, r.count).
			because("unit %s was started again %d times within %v; its last run ended with: %s",
				unit, r.count, loopTime, cmp.Or(r.cause, "no error")).
			do("", describe))
	}
	each(p.GetUnits(), "", func(u *operatorv1.Unit, path string) {
		known := looping[path] != nil || looping[u.GetName()] != nil
		if worker.Status(u.GetStatus()) == worker.StatusFailed && !known {
			list = append(list, found("unit-failed", subject, u.GetSince().AsTime(), 1).
				because("unit %s has failed%s", path, after(u.GetReason())).
				do("", describe))
		}
		waits := said(p, now).Sub(u.GetSince().AsTime()).Round(time.Second)
		isInBackoff := worker.Status(u.GetStatus()) == worker.StatusPending && strings.HasPrefix(u.GetReason(), "backoff after")
		if isInBackoff && u.GetSince() != nil && waits > backoffTime && !known {
			list = append(list, found("unit-failed", subject, u.GetSince().AsTime(), 1).
				because("unit %s does not run: it has waited for %v until it is started again; %s", path, waits, u.GetReason()).
				do("the Max of its Backoff, or what it failed for", restartUnit(p, u, path)))
		}
		if strings.Contains(u.GetReason(), "out of memory") {
			list = append(list, found("out-of-memory", subject, u.GetSince().AsTime(), 1).
				because("worker %s: %s", path, u.GetReason()).
				do("the memory limit of the worker", describe))
		}
	})
	if p.GetPhase() == "running" {
		list = append(list, stopped(p, p.GetUnits(), "", now)...)
	}
	return list
}

// stopped finds the children of supervisors that were stopped and not started again.
func stopped(p *operatorv1.Process, units []*operatorv1.Unit, above string, now time.Time) (list []*operatorv1.Finding) {
	for _, u := range units {
		for _, c := range u.GetChildren() {
			since := c.GetSince()
			isKept := u.GetKind() == "supervisor" && worker.Status(u.GetStatus()) == worker.StatusRunning
			isStopped := worker.Status(c.GetStatus()) == worker.StatusStopped && since != nil
			if !isKept || !isStopped || said(p, now).Sub(since.AsTime()) <= stoppedTime {
				continue
			}
			path := above + u.GetName() + "/" + c.GetName()
			list = append(list, found("unit-stopped", "process/"+p.GetId(), since.AsTime(), 1).
				because("unit %s was stopped and not started again; its supervisor keeps its place", path).
				do("the program, when the unit should be gone: Remove takes it out", restartUnit(p, c, path)))
		}
		list = append(list, stopped(p, u.GetChildren(), above+u.GetName()+"/", now)...)
	}
	return list
}

// restartUnit returns the command that starts a unit again.
func restartUnit(p *operatorv1.Process, u *operatorv1.Unit, path string) string {
	if !u.GetRestartable() {
		return Command("describe %s", p.GetId())
	}
	return Command("processes restart-unit %s %s", p.GetId(), path)
}

// said returns the time of the announcement by the process's own clock, as the times of its units are.
func said(p *operatorv1.Process, now time.Time) time.Time {
	if p.GetSaidAt() != nil {
		return p.GetSaidAt().AsTime()
	}
	return now
}

// LastReloads returns the last reload of each name, of steps in the order in which they ran.
func LastReloads(steps []*operatorv1.Step) (list []*operatorv1.Step) {
	for _, s := range steps {
		if s.GetKind() != "reload" {
			continue
		}
		if i := slices.IndexFunc(list, func(x *operatorv1.Step) bool { return x.GetName() == s.GetName() }); i >= 0 {
			list[i] = s
		} else {
			list = append(list, s)
		}
	}
	return list
}

// suspendedSince returns when the App's own check went down.
func suspendedSince(p *operatorv1.Process) time.Time {
	for _, c := range p.GetProbes() {
		if c.GetName() == "lifecycle" && c.GetState() != "up" && c.GetSince() != nil {
			return c.GetSince().AsTime()
		}
	}
	return p.GetSeenAt().AsTime()
}

type loop struct {
	count int
	since time.Time
	cause string
}

// restarts returns the units that crash again and again.
func restarts(p *operatorv1.Process, now time.Time) map[string]*loop {
	all := map[string]*loop{}
	for _, r := range p.GetRestarts() { // newest first
		at := r.GetAt().AsTime()
		if now.Sub(at) > loopTime || r.GetWho() != "" { // an operator asked for this restart
			continue
		}
		l := all[r.GetUnit()]
		if l == nil {
			l = &loop{cause: r.GetCause()}
			all[r.GetUnit()] = l
		}
		l.count++
		l.since = at
	}
	for unit, l := range all {
		if l.count < loopRestarts {
			delete(all, unit)
		}
	}
	return all
}

func entered(p *operatorv1.Process, phase string) time.Time {
	for _, ph := range p.GetPhases() {
		if ph.GetPhase() == phase {
			return ph.GetEntered().AsTime()
		}
	}
	return time.Time{}
}

func starting(p *operatorv1.Process, now time.Time) (list []*operatorv1.Finding) {
	at := entered(p, "starting")
	if p.GetPhase() != "starting" || at.IsZero() || now.Sub(at) <= startTime {
		return nil
	}
	return append(list, found("start-blocked", "process/"+p.GetId(), at, 1).
		because("it has been starting for %v and waits for %s",
			now.Sub(at).Round(time.Second), cmp.Or(p.GetWaiting(), waitsFor(p), "an unknown part")).
		do("", Command("describe %s", p.GetId())))
}

func waitsFor(p *operatorv1.Process) string {
	var names []string
	each(p.GetUnits(), "", func(u *operatorv1.Unit, path string) {
		switch worker.Status(u.GetStatus()) {
		case worker.StatusStarting, worker.StatusPending, worker.StatusCreated:
			names = append(names, "unit "+path)
		}
	})
	return strings.Join(names, ", ")
}

func stopping(p *operatorv1.Process, now time.Time) (list []*operatorv1.Finding) {
	at, budget := entered(p, "draining"), p.GetBudget().AsDuration()
	if at.IsZero() {
		at = entered(p, "stopping")
	}
	stops := p.GetPhase() == "draining" || p.GetPhase() == "stopping"
	if !stops || at.IsZero() || budget <= 0 || now.Sub(at) <= budget+stopMargin {
		return nil
	}
	return append(list, found("stop-hung", "process/"+p.GetId(), at, 1).
		because("it has been stopping for %v, longer than its budget of %v, and waits for %s",
			now.Sub(at).Round(time.Second), budget, cmp.Or(p.GetWaiting(), "an unknown part")).
		do("", Command("describe %s", p.GetId())))
}

func probes(p *operatorv1.Process) (list []*operatorv1.Finding) {
	if p.GetPhase() != "running" {
		return nil
	}
	for _, c := range p.GetProbes() {
		if !failing(c) || c.GetState() == "unknown" && c.GetError() == "" {
			continue
		}
		rule, change, next := "probe-down", "", "describe %s"
		if c.GetSlow() {
			rule, next = "probe-slow", "stacks %s"
			change = "what the check " + c.GetName() + " waits for; its timeout (lifecycle.probe_timeout) only when a good answer takes as long"
		}
		list = append(list, found(rule, "process/"+p.GetId(), c.GetSince().AsTime(), 1).
			because("probe %s is %s%s: /%s fails", c.GetName(), c.GetState(), after(c.GetError()), plane(c.GetPlane())).
			do(change, Command(next, p.GetId())))
	}
	return list
}

// plane returns the path of a plane.
func plane(name string) string {
	switch name {
	case "liveness":
		return "livez"
	case "startup":
		return "startupz"
	}
	return "readyz"
}

func size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", bytes>>20)
}

// Bad reports whether an event is the end of a process that did not end cleanly.
func Bad(e *operatorv1.Event) bool { return e.GetTo() != endclass.Clean }

// ends applies the rules about processes that have ended.
func ends(f Fleet) (list []*operatorv1.Finding) {
	failed := map[string][]*operatorv1.Event{} // by service, within endsTime
	dropped := map[string]*operatorv1.Event{}
	for _, e := range f.Ends {
		if f.Now.Sub(e.GetAt().AsTime()) > endShown {
			continue
		}
		if e.GetKind() == "dropped" {
			if d := dropped[e.GetProcess()]; d == nil {
				dropped[e.GetProcess()] = &operatorv1.Event{Process: e.GetProcess(), At: e.GetAt(), Count: e.GetCount()}
			} else {
				d.Count += e.GetCount()
			}
			continue
		}
		if one := end(e); one != nil {
			list = append(list, one)
		}
		if Bad(e) && f.Now.Sub(e.GetAt().AsTime()) <= endsTime {
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
	for _, id := range slices.Sorted(maps.Keys(dropped)) {
		d := dropped[id]
		list = append(list, found("journal-dropped", "process/"+id, d.GetAt().AsTime(), int(d.GetCount())).
			because("%s of this process not in the journal: it had more than the journal takes", count(d.GetCount(), "event is", "events are")).
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
	endclass.OOM: {
		rule:   "out-of-memory",
		cause:  "it disappeared with its memory at the limit",
		change: "resources.limits.memory, or what the process keeps",
	},
	endclass.Forced: {
		rule:   "grace-too-short",
		cause:  "it was killed in the middle of its stop",
		change: "terminationGracePeriodSeconds: more than the budget of a stop",
	},
	endclass.Lost:   {rule: "process-lost", cause: "it disappeared without a word"},
	endclass.Killed: {rule: "process-lost", cause: "it disappeared without a word"},
	endclass.Evicted: {
		rule:   "process-evicted",
		cause:  "its host had to give it up",
		change: "resources.requests, so that the scheduler knows what the process needs",
	},
	endclass.Hung: {
		rule:   "stop-hung",
		change: "lifecycle.shutdown_grace, when the part needs more time",
	},
	endclass.Cut:      {rule: "grace-too-short", change: "lifecycle.shutdown_grace"},
	endclass.Panicked: {rule: "process-failed"},
	endclass.Failed:   {rule: "process-failed"},
}

// end applies the rules about the end of one process.
func end(e *operatorv1.Event) *operatorv1.Finding {
	bad, ok := badEnds[e.GetTo()]
	if !ok {
		return nil
	}
	cause := cmp.Or(e.GetCause(), bad.cause)
	switch e.GetTo() {
	case endclass.Panicked:
		cause = "it panicked" + after(cause)
	case endclass.Failed:
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
		key := [2]string{e.GetProcess(), cmp.Or(e.GetCause(), e.GetName())} // a supervisor of the unit has the same cause
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

// flaps finds the probes that fail again and again.
func flaps(f Fleet) (list []*operatorv1.Finding) {
	type probe struct{ process, name string } // with its plane: "readiness/db"
	decides := map[probe]bool{}
	for _, p := range f.Processes {
		for _, c := range p.GetProbes() {
			isOwn := c.GetName() == "lifecycle" // the App's own check repeats the phase
			decides[probe{p.GetId(), c.GetPlane() + "/" + c.GetName()}] = p.GetPhase() == "running" && c.GetCritical() && !isOwn
		}
	}
	downs := map[probe][]*operatorv1.Event{}
	var order []probe
	for _, e := range f.Downs {
		k := probe{e.GetProcess(), e.GetName()}
		if !decides[k] {
			continue
		}
		if downs[k] == nil {
			order = append(order, k)
		}
		downs[k] = append(downs[k], e)
	}
	for _, k := range order {
		all := downs[k]
		if len(all) < flapTimes {
			continue
		}
		_, name, _ := strings.Cut(k.name, "/")
		list = append(list, found("probe-flaps", "process/"+k.process, all[len(all)-1].GetAt().AsTime(), len(all)).
			because("probe %s has failed %d times within %v, and passed in between%s",
				name, len(all), FlapTime, after(all[0].GetCause())).
			do("", Command("events --process %s --kind probe", k.process)))
	}
	return list
}

// suspended finds the services of which all processes are suspended.
func suspended(f Fleet) (list []*operatorv1.Finding) {
	type tally struct {
		all, suspended int
		since          time.Time // of the latest suspension
		last           *operatorv1.Process
	}
	services := map[string]*tally{}
	for _, p := range f.Processes {
		if p.GetPhase() != "running" {
			continue
		}
		t := services[p.GetService()]
		if t == nil {
			t = &tally{}
			services[p.GetService()] = t
		}
		t.all++
		if p.GetSuspended() != "" {
			t.suspended++
			if at := suspendedSince(p); t.last == nil || at.After(t.since) {
				t.since, t.last = at, p
			}
		}
	}
	for _, service := range slices.Sorted(maps.Keys(services)) {
		t := services[service]
		if t.suspended < t.all || f.Now.Sub(t.since) <= suspendedAll {
			continue
		}
		list = append(list, found("suspended-long", "service/"+service, t.since, t.all).
			because("no process of %s is ready: readiness is suspended in %s, the last time: %s", service, all(t.all), t.last.GetSuspended()).
			do("", Command("processes resume %s", t.last.GetId())))
	}
	return list
}

// all says of how many something is true.
func all(n int) string {
	if n == 1 {
		return "its only process"
	}
	return fmt.Sprintf("all %d", n)
}

// skew applies the rules that compare processes.
func skew(f Fleet) (list []*operatorv1.Finding) {
	versions := map[string]map[string]int{}
	youngest := map[string]time.Time{}
	for _, p := range f.Processes {
		if versions[p.GetService()] == nil {
			versions[p.GetService()] = map[string]int{}
		}
		versions[p.GetService()][p.GetVersion()]++
		if at := p.GetStartedAt().AsTime(); at.After(youngest[p.GetService()]) {
			youngest[p.GetService()] = at
		}
	}
	for _, service := range slices.Sorted(maps.Keys(versions)) {
		since := youngest[service]
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

// rolledBack begins the note of a host that has rolled a canary back.
const rolledBack = "the canary is rolled back"

// hosted applies the rules about hosted workers.
func hosted(f Fleet) (list []*operatorv1.Finding) {
	for _, w := range f.Workers {
		subject, updated := "worker/"+w.GetId(), w.GetUpdatedAt().AsTime()
		if n := w.GetDeadLetters(); n > 0 {
			list = append(list, found("dead-letters", subject, updated, int(n)).
				because("%s could not be handled; the oldest: %s",
					count(n, "message", "messages"), cmp.Or(f.Letters[w.GetId()], "its reason is not known")).
				do("", Command("dead-letters %s", w.GetId())))
		}
		if strings.HasPrefix(w.GetChanged(), rolledBack) && f.Now.Sub(updated) <= canaryShown {
			list = append(list, found("canary-rolled-back", subject, updated, 1).
				because("%s; the version before it runs", w.GetChanged()).
				do("the code of the new version", Command("workers history %s", w.GetId())))
		}
		state, desired := strings.ToLower(w.GetState()), strings.ToLower(w.GetDesired())
		switch {
		case state == "failed":
			list = append(list, found("worker-failed", subject, updated, 1).
				because("it has failed%s", after(w.GetError())).
				do("", Command("workers get %s", w.GetId())))
		case desired == "running" && state != "running" && f.Now.Sub(updated) > backlogTime:
			list = append(list, found("worker-failed", subject, updated, int(w.GetBacklog())).
				because("it should run and is %s; %s%s", w.GetState(), count(w.GetBacklog(), "message waits", "messages wait"), after(w.GetError())).
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
				because("%s cannot be read", count(n, "stored record", "stored records")).
				do("", Command("list %s", d.GetType())))
		}
	}
	for _, h := range f.Hooks {
		if h.Failures >= hookFailures {
			list = append(list, found("hook-fails", "workflow/"+h.Type, time.Time{}, h.Failing).
				because("%s of the hook %s failed and will be tried again, one of them %d times by now",
					count(h.Failing, "reaction", "reactions"), h.Name, h.Failures).
				do("what the hook calls; the log of the process that runs it has the error", Command("list %s", h.Type)))
		}
		if h.DeadLetters > 0 {
			list = append(list, found("dead-letters", "workflow/"+h.Type, time.Time{}, h.DeadLetters).
				because("the hook %s has given up %s", h.Name, count(h.DeadLetters, "reaction", "reactions")).
				do("", Command("dead-letters %s", h.Type+"/"+h.Name)))
		}
	}
	for _, s := range f.Stuck {
		list = append(list, found("entity-stuck", "workflow/"+s.Type, s.Since, s.Count).
			because("%s in the phase %s for longer than %v; the oldest is %s",
				count(s.Count, "entity is", "entities are"), s.Phase, s.Limit, s.ID).
			do("", Command("history %s %s", s.Type, s.ID)))
	}
	for _, h := range f.Hot {
		list = append(list, found("entity-hot", "workflow/"+h.Type, h.Since, h.Writes).
			because("entity %s was written %d times within a minute", h.ID, h.Writes).
			do("", Command("history %s %s", h.Type, h.ID)))
	}
	return list
}
