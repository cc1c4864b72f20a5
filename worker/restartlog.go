package worker

import (
	"log/slog"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// restartLog writes the restarts of one worker to a log, at most one line a second. Only
// the loop of the worker uses it.
type restartLog struct {
	log  *slog.Logger // nil logs nothing
	last time.Time
}

// due reports whether a line may be written now.
func (l *restartLog) due() bool { return l.log != nil && time.Since(l.last) >= time.Second }

// say logs that a worker has failed with err and is restarted after wait, for the given
// time in its life. who names the worker, as attributes.
func (l *restartLog) say(msg string, err error, restarts int, wait time.Duration, who ...any) {
	l.last = time.Now()
	_ = call.Do("log handler", func() error {
		l.log.Warn(msg, append(who, "error", err, "restarts", restarts, "wait", wait.Round(time.Millisecond))...)
		return nil
	})
}

// LogTo makes the supervisor, and every supervisor and restarted function below it, log
// each failure that is answered with a restart: the error, the number of the restart, and
// the wait before it. Each of them writes at most one line a second, so the numbers may
// jump. Call LogTo before Start.
func (s *Supervisor) LogTo(log *slog.Logger) { s.log.log = log }

func (s *Supervisor) logRestart(c *child, err error, wait time.Duration) {
	if !s.log.due() {
		return
	}
	msg := "child failed, and is restarted"
	if err == nil {
		msg, err = "child ended, and is restarted", errEnded
	}
	s.mu.Lock()
	restarts := int(c.restarts) + 1
	s.mu.Unlock()
	s.log.say(msg, call.Unnamed(c.name, err), restarts, wait, "supervisor", s.Name(), "child", c.name)
}
