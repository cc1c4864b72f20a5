package diagnosis

import (
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Times and numbers from which on what a process uses is a finding.
const (
	stillTime       = time.Minute      // a unit that has given no sign of progress for this long,
	stillServer     = 2 * time.Minute  // or a server for which requests wait,
	stillGaps       = 4                // and for so many times the longest time between two signs, stands still
	goroutineGrowth = time.Minute      // goroutines that grow for this long
	goroutinesMany  = 10_000           // are a leak from this number on
	goroutinesLong  = 3 * time.Minute  // and after this long
	goroutinesSome  = 1000             // from this one
	memoryGrowth    = 10 * time.Minute // memory that grows for this long
	memoryGrown     = 128 << 20        // and by this much
	descriptorShare = 90               // percent of the limit
	threadsMany     = 1000             //
	throttledShare  = 25               // percent of the last minute
	busyTime        = 2 * time.Minute  // a processor that is used without a pause for this long,
	busyOne         = 120              // in percent: one goroutine, and what the runtime does for it,
	busyAll         = 95               // or so many percent of all that the program may use
)

// usage applies the rules about what a process uses, and whether it gets on.
func usage(p *operatorv1.Process, now time.Time) (list []*operatorv1.Finding) {
	subject, at := "process/"+p.GetId(), said(p, now)
	stacks, describe := Command("stacks %s", p.GetId()), Command("describe %s", p.GetId())
	if p.GetPhase() == "running" {
		list = append(list, still(p, at)...)
	}
	list = append(list, panics(p, at)...)
	list = append(list, busy(p, at)...)
	if g, n := p.GetGoroutineGrowth(), p.GetGoroutines(); g != nil && n >= 2*g.GetFrom() {
		took := at.Sub(g.GetSince().AsTime())
		if took >= goroutineGrowth && n >= goroutinesMany || took >= goroutinesLong && n >= goroutinesSome {
			list = append(list, found("goroutines-grow", subject, g.GetSince().AsTime(), int(n)).
				because("its goroutines have only grown for %v: from %d to %d", took.Round(time.Second), g.GetFrom(), n).
				do("", stacks))
		}
	}
	if g, n := p.GetMemoryGrowth(), p.GetMemoryBytes(); g != nil && n-g.GetFrom() >= memoryGrown {
		if took := at.Sub(g.GetSince().AsTime()); took >= memoryGrowth {
			list = append(list, found("memory-grows", subject, g.GetSince().AsTime(), 1).
				because("its memory has only grown for %v: from %s to %s%s",
					took.Round(time.Second), size(g.GetFrom()), size(n), until(p, took)).
				do("what the process keeps", describe))
		}
	}
	if n, most := p.GetDescriptors(), p.GetDescriptorLimit(); most > 0 && n*100 >= most*descriptorShare {
		list = append(list, found("descriptors-high", subject, time.Time{}, int(n)).
			because("it has %d of at most %d open files and connections", n, most).
			do("the limit of open files, or what the process leaves open", stacks))
	}
	if n := p.GetThreads(); n >= threadsMany {
		list = append(list, found("threads-high", subject, time.Time{}, int(n)).
			because("it has %d threads; a program in Go ends at 10000", n).
			do("what blocks a thread, such as a call of C or of the system", stacks))
	}
	if n := p.GetThrottledPercent(); n >= throttledShare {
		list = append(list, found("throttled", subject, time.Time{}, int(n)).
			because("its processor time was used up in %d %% of the last minute", n).
			do("resources.limits.cpu", describe))
	}
	return list
}

// panics finds the servers whose handlers panic again and again.
func panics(p *operatorv1.Process, at time.Time) (list []*operatorv1.Finding) {
	for _, s := range p.GetServers() {
		since := s.GetPanicking()
		if since == nil || at.Sub(since.AsTime()) > panicTime {
			continue
		}
		list = append(list, found("requests-panic", "process/"+p.GetId(), time.Time{}, int(s.GetPanics())).
			because("handlers of server %s have panicked %d times, three times within the last %v; the last one said: %s",
				s.GetName(), s.GetPanics(), at.Sub(since.AsTime()).Round(time.Second), s.GetLastPanic()).
			do("the handler; the log of the process has the stack", Command("logs %s", p.GetId())))
	}
	return list
}

// busy finds out whether a process uses a processor without a pause, and no unit shows that it gets
// on: a loop that spins uses one, or all that there are.
func busy(p *operatorv1.Process, at time.Time) []*operatorv1.Finding {
	b := p.GetProcessor()
	if b == nil || at.Sub(b.GetSince().AsTime()) < busyTime {
		return nil
	}
	n, most := b.GetPercent(), b.GetMost()
	if n > busyOne && n*100 < most*busyAll {
		return nil
	}
	getsOn := false
	each(p.GetUnits(), "", func(u *operatorv1.Unit, _ string) {
		getsOn = getsOn || u.GetProgress() != nil && at.Sub(u.GetProgress().AsTime()) < stillTime
	})
	if getsOn {
		return nil
	}
	return []*operatorv1.Finding{found("processor-busy", "process/"+p.GetId(), b.GetSince().AsTime(), 1).
		because("it has used %d %% of one processor, of at most %d, without a pause for %v, and no unit gives a sign of progress",
			n, most, at.Sub(b.GetSince().AsTime()).Round(time.Second)).
		do("a loop that spins; when the process computes on purpose, let its loop call lifecycle.Progress", Command("stacks %s", p.GetId()))}
}

// until says when memory that goes on growing reaches its limit.
func until(p *operatorv1.Process, took time.Duration) string {
	n, limit := p.GetMemoryBytes(), p.GetMemoryLimitBytes()
	if limit <= n {
		return ""
	}
	left := time.Duration(float64(took) * float64(limit-n) / float64(n-p.GetMemoryGrowth().GetFrom()))
	if left > 48*time.Hour {
		return ""
	}
	return fmt.Sprintf("; at this pace it reaches its limit of %s in about %v", size(limit), left.Round(time.Minute))
}

// still finds the units that gave signs of progress and give none any more. The times of units are
// by the clock of the process.
func still(p *operatorv1.Process, at time.Time) (list []*operatorv1.Finding) {
	each(p.GetUnits(), "", func(u *operatorv1.Unit, path string) {
		last := u.GetProgress()
		if last == nil || worker.Status(u.GetStatus()) != worker.StatusRunning {
			return
		}
		least, what, waits := stillTime, "unit "+path+" has given no sign of progress", ""
		if i := slices.IndexFunc(p.GetServers(), func(s *operatorv1.Server) bool { return s.GetName() == path }); i >= 0 {
			least, what = stillServer, "server "+path+" has finished no request and sent nothing"
			waits = fmt.Sprintf(" while %d requests wait", p.GetServers()[i].GetInFlight())
		}
		quiet, gap := at.Sub(last.AsTime()), u.GetProgressGap().AsDuration()
		if quiet <= max(least, stillGaps*gap) {
			return
		}
		list = append(list, found("unit-stands-still", "process/"+p.GetId(), last.AsTime(), 1).
			because("%s for %v%s; the longest time between two signs of progress was %v", what, quiet.Round(time.Second), waits, gap).
			do("", Command("stacks %s", p.GetId())))
	})
	return list
}
