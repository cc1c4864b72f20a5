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

// say logs that a worker has failed with err and is restarted after wait. It is the restart
// with the number restarts in the worker's life. named has the attributes that name the worker.
func (l *restartLog) say(msg string, err error, restarts int, wait time.Duration, named ...any) {
	l.last = time.Now()
	_ = call.Do("log handler", func() error {
		attributes := append(named, "error", err, "restarts", restarts, "wait", wait.Round(time.Millisecond))
		l.log.Warn(msg, call.Logged(err, attributes...)...)
		return nil
	})
}

// failureLog writes the failures that no restart answers, at most one line a second. Only
// the loop of a supervisor uses it.
type failureLog struct {
	last   time.Time
	others int // failures without a line
}

// LogTo makes the supervisor, and every supervisor and restarted function below it, log
// each failure that leads to a restart: the error, the number of the restart, and the wait
// before it. Each of them writes at most one line a second, so the numbers may jump. A
// supervisor also logs each child that fails and is not started again, and each child that
// fails as it stops. That too is at most one line a second: the next line says how many
// failures had none. Call LogTo before Start.
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
	restarts := c.restarts + 1
	s.mu.Unlock()
	s.log.say(msg, call.Unnamed(c.name, err), restarts, wait, "supervisor", s.Name(), "child", c.name)
}

const notAgain = "child failed, and is not started again"

// logFailure logs that a child has failed, unless its error says only that it is done.
func (s *Supervisor) logFailure(c *child, msg string, end *ending) {
	err := end.err
	isDone := call.Only(err, ErrDoNotRestart, errGivenUp)
	switch {
	case s.log.log == nil || end.status != StatusFailed || call.Is(err, ErrTerminate) || isDone:
		return
	case time.Since(s.failures.last) < time.Second:
		s.failures.others++
		return
	}
	s.failures.last = time.Now()
	s.sayFailure(msg, call.Logged(err, "supervisor", s.Name(), "child", c.name, "error", call.Unnamed(c.name, err))...)
}

// logOthers logs, as the supervisor ends, how many failures had no line.
func (s *Supervisor) logOthers() {
	if s.failures.others > 0 {
		s.sayFailure("children failed", "supervisor", s.Name())
	}
}

func (s *Supervisor) sayFailure(msg string, attributes ...any) {
	if n := s.failures.others; n > 0 {
		s.failures.others = 0
		attributes = append(attributes, "others", n)
	}
	_ = call.Do("log handler", func() error {
		s.log.log.Error(msg, attributes...)
		return nil
	})
}
