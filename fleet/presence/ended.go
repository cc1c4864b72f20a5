package presence

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// panicStatus is the exit status of a Go program that panics.
const panicStatus = 2

// ended completes the event of a lost process with what the platform knows. It returns the event as
// it is when the platform knows nothing.
func (f *Fleet) ended(ctx context.Context, p Process, e Event) Event {
	if f.cfg.Ended == nil {
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	var end End
	err := call.Within(ctx, "presence.Config.Ended", pace, func() (err error) {
		end, err = f.cfg.Ended(ctx, p)
		return err
	})
	if err != nil {
		f.cfg.Logger.Warn("presence: the platform does not say how a process ended", "process", p.ID, "error", err)
		return e
	}
	e.ExitStatus = max(0, end.ExitStatus)
	parts := []string{"the platform says: " + text.Clip(end.Reason, maxReason)}
	switch n := end.ExitStatus; {
	case n > 128 && n < 256:
		parts = append(parts, fmt.Sprintf("signal %d (%v) ended it", n-128, syscall.Signal(n-128)))
	case n == panicStatus:
		parts = append(parts, fmt.Sprintf("exit status %d, as of a panic", n))
	case n >= 0:
		parts = append(parts, fmt.Sprintf("exit status %d", n))
	}
	if m := strings.TrimSpace(end.Message); m != "" {
		parts = append(parts, text.Clip(m, maxEventText/2))
	}
	if end.Restarts > 0 {
		parts = append(parts, fmt.Sprintf("restarts so far: %d", end.Restarts))
	}
	switch {
	case end.Reason == "OOMKilled":
		e.To = EndOOM
	case end.Reason == "Evicted":
		e.To = EndEvicted
	case end.ExitStatus == panicStatus:
		e.To = EndPanicked
	case end.ExitStatus > 128 && e.To != EndForced: // a stop that was cut short says more
		e.To = EndKilled
	case end.ExitStatus > 0 && end.ExitStatus <= 128:
		e.To = EndFailed
	case end.ExitStatus == 0:
		e.To = EndLost
	}
	e.Cause = strings.Join(parts, "; ") + "; " + e.Cause
	return e
}

// eventOf completes an event that happens once in the life of a process.
func eventOf(p Process, e Event) Event {
	e.Service, e.Process, e.Version, e.Host = p.Service, p.ID, p.Version, p.Host
	e.once = once(e.Kind, p.ID, p.StartedAt)
	return e
}

// lostEvent describes a process that disappeared. Nothing is known but its last
// announcement.
func lostEvent(p Process, heard time.Time) Event {
	e := eventOf(p, Event{Kind: "lost", From: string(p.Status.Report.Phase), To: EndLost, Life: began(p.Status.Report)})
	e.seen = p.SeenAt
	cause := fmt.Sprintf("not heard since %s; it was %s", heard.UTC().Format(time.RFC3339), cmp.Or(e.From, "unreadable"))
	if p.Status.Waiting != "" {
		cause += ", and waited for " + p.Status.Waiting
	}
	report := p.Status.Report
	if p.Memory != (Memory{}) {
		cause += "; its last known memory was " + p.Memory.text()
	}
	switch limit := p.Memory.Limit; {
	case limit > 0 && float64(p.Memory.Used)*100 >= float64(limit)*90: // a limit may be near the largest number
		e.To = EndOOM
		cause += ", so the kernel probably killed it"
	case report.Phase == lifecycle.PhaseDraining || report.Phase == lifecycle.PhaseStopping:
		e.To = EndForced
		took := heard.Sub(report.Requested).Round(time.Second)
		cause += fmt.Sprintf("; it was killed about %v after its stop began, and its budget is %v", took, report.Budget)
	}
	e.Cause = cause
	return e
}

// describeEnd returns the class and the cause of an end that the process announces itself.
func describeEnd(r lifecycle.Report) (class, cause string) {
	class = EndClean
	order := []string{EndClean, EndFailed, EndCut, EndHung}
	worst := func(c string) {
		if slices.Index(order, c) > slices.Index(order, class) {
			class = c
		}
	}
	parts := []string{cmp.Or(r.Reason, "it finished")}
	if strings.HasPrefix(r.Reason, "start: ") { // the App's word for a start that failed
		worst(EndFailed)
	}
	for _, list := range []struct {
		kind     string
		outcomes []lifecycle.Outcome
	}{{"unit", r.Units}, {"drainer", r.Drainers}, {"hook", r.Hooks}} {
		for _, o := range list.outcomes {
			switch o.Result {
			case lifecycle.ResultAbandoned:
				worst(EndHung)
			case lifecycle.ResultFailed, lifecycle.ResultPanicked:
				worst(EndFailed)
			case lifecycle.ResultSkipped:
				if list.kind != "hook" {
					continue
				}
				worst(EndCut)
			default:
				continue
			}
			parts = append(parts, list.kind+" "+o.String())
		}
	}
	if r.CutRequests > 0 {
		worst(EndCut)
		parts = append(parts, fmt.Sprintf("%d requests were cut", r.CutRequests))
	}
	if len(r.Left) > 0 {
		worst(EndHung)
		parts = append(parts, "abandoned: "+strings.Join(r.Left, ", "))
	}
	return class, strings.Join(parts, "; ")
}
