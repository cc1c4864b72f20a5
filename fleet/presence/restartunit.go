package presence

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// restartTime is how long a process waits for the restart of a unit before it answers.
const restartTime = 2 * time.Second

// RestartUnit asks a process to restart one of its supervised units, by its path in the
// announcement, such as "pool/w1". It returns the phase of the process and the status of the
// unit: running when it has started again, and otherwise what it is after the run has failed
// or two seconds have passed; then the restart goes on. ErrRefused is returned for a unit that
// is not there, that nothing supervises, or that is stopping. The journal has the command, and
// the restart with who asked for it.
func (f *Fleet) RestartUnit(ctx context.Context, id, unit, reason, who string) (phase, status string, err error) {
	a, err := f.ask(ctx, id, command{Do: doRestart, Unit: unit, Reason: reason, Who: who})
	return a.Phase, a.Status, err
}

// asked is a restart that an operator has asked for.
type asked struct{ who, reason string }

// restart carries out the command.
func (a *announcer) restart(c command, out *answer) (refused string) {
	if len(c.Unit) > maxUnit {
		return "the path of the unit is too long"
	}
	a.mu.Lock()
	before, wasAsked := a.asked[c.Unit]
	a.asked[c.Unit] = asked{c.Who, c.Reason}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), restartTime)
	defer cancel()
	err := a.app.RestartUnit(ctx, c.Unit)
	notRestarted := errors.Is(err, worker.ErrNotRestartable) || errors.Is(err, worker.ErrNoChild) ||
		errors.Is(err, worker.ErrSupervisorEnded)
	if notRestarted {
		a.askedFor(c.Unit)
		if wasAsked { // a restart that was asked for before goes on
			a.mu.Lock()
			a.asked[c.Unit] = before
			a.mu.Unlock()
		}
		return text.Clip(err.Error(), maxReason)
	}
	// Any other error comes from the next run: the restart has happened.
	out.Status = statusOf(a.app.Status().Units, c.Unit)
	return ""
}

// maxUnit bounds the path of a unit, in bytes.
const maxUnit = 1024

// askedFor returns who asked for a restart of a unit that has happened, once.
func (a *announcer) askedFor(unit string) (by asked, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	by, ok = a.asked[unit]
	delete(a.asked, unit)
	return by, ok
}

// statusOf returns the status of the unit at a path, or of the run of a supervised function.
func statusOf(units []worker.State, path string) string {
	for _, u := range units {
		below, ok := strings.CutPrefix(path+"/", u.Name+"/")
		switch {
		case !ok:
		case below != "":
			if status := statusOf(u.Children, strings.TrimSuffix(below, "/")); status != "" {
				return status
			}
		case u.Kind == "restarter" && len(u.Children) == 1:
			return string(u.Children[0].Status)
		default:
			return string(u.Status)
		}
	}
	return ""
}
