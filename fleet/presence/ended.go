package presence

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// panicStatus is the exit status of a Go program that panics.
const panicStatus = 2

// ended completes a tombstone with what the platform knows. It returns the tombstone as it
// is when the platform knows nothing.
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
		f.cfg.Log.Warn("presence: the platform does not say how a process ended", "process", p.ID, "error", err)
		return e
	}
	e.ExitStatus = max(0, end.ExitStatus)
	words := []string{"the platform says: " + text.Clip(end.Reason, maxReason)}
	switch n := end.ExitStatus; {
	case n > 128 && n < 256:
		words = append(words, fmt.Sprintf("signal %d (%v) ended it", n-128, syscall.Signal(n-128)))
	case n == panicStatus:
		words = append(words, fmt.Sprintf("exit status %d, as of a panic", n))
	case n >= 0:
		words = append(words, fmt.Sprintf("exit status %d", n))
	}
	if m := strings.TrimSpace(end.Message); m != "" {
		words = append(words, text.Clip(m, maxEventText/2))
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
	e.Cause = strings.Join(words, "; ") + "; " + e.Cause
	return e
}
