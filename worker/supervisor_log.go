package worker

import (
	"context"
	"log/slog"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// limitedLog writes at most one line a second. Only the loop of a worker uses it.
type limitedLog struct {
	log  *slog.Logger // nil logs nothing
	last time.Time
}

// due reports whether a line may be written now.
func (l *limitedLog) due() bool { return l.log != nil && time.Since(l.last) >= time.Second }

// say writes a line about an error.
func (l *limitedLog) say(level slog.Level, msg string, err error, attributes ...any) {
	l.last = time.Now()
	_ = call.Do("log handler", func() error {
		l.log.Log(context.Background(), level, msg, call.Logged(err, attributes...)...)
		return nil
	})
}

// LogTo makes the supervisor, and every supervisor and restarted function below it, log
// each failure that leads to a restart: the error, the number of the restart, and the wait
// before it. Each of them writes at most one line a second, so the numbers may jump. A
// supervisor also logs each child that fails and is not started again, and each child that
// fails as it stops. That too is at most one line a second. Call LogTo before Start.
func (s *Supervisor) LogTo(log *slog.Logger) { s.log.log, s.failures.log = log, log }

func (s *Supervisor) logRestart(c *child, err error, wait time.Duration) {
	if !s.log.due() {
		return
	}
	msg := "child failed, and is restarted"
	if err == nil {
		msg, err = "child ended, and is restarted", errEnded
	}
	err = call.Unnamed(c.name, err)
	s.log.say(slog.LevelWarn, msg, err, "supervisor", s.Name(), "child", c.name,
		"error", err, "restarts", c.restarts+1, "wait", wait.Round(time.Millisecond))
}

const notAgain = "child failed, and is not started again"

// logFailure logs that a child has failed, unless its error says only that it is done.
func (s *Supervisor) logFailure(c *child, msg string, end *ending) {
	err := end.err
	isDone := call.Only(err, ErrDoNotRestart, errGivenUp)
	if !s.failures.due() || end.status != StatusFailed || call.Is(err, ErrTerminate) || isDone {
		return
	}
	s.failures.say(slog.LevelError, msg, err, "supervisor", s.Name(), "child", c.name, "error", call.Unnamed(c.name, err))
}
