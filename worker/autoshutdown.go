package worker

import (
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// AutoShutdown says whether a [Supervisor] ends when children with Significant in their
// [Spec] have ended. A child has ended when its Restart does not start it again; a child
// that never starts counts too. A child that [Supervisor.StopChild] or
// [Supervisor.Remove] stops does not count, and neither does one that is stopped together
// with others.
//
// The supervisor then stops its children in reverse order and is Finished. A supervisor
// above it sees a child that has finished by itself.
type AutoShutdown string

// The values of AutoShutdown.
const (
	ShutdownNever  AutoShutdown = "never"           // a supervisor with a Significant child is an error; the default
	AnySignificant AutoShutdown = "any-significant" // the end of one significant child ends the supervisor
	AllSignificant AutoShutdown = "all-significant" // the end of the last significant child ends the supervisor
)

func (a AutoShutdown) validate() error {
	switch a {
	case "", ShutdownNever, AnySignificant, AllSignificant:
		return nil
	}
	return fmt.Errorf("AutoShutdown is %q, want %q, %q or %q", a, ShutdownNever, AnySignificant, AllSignificant)
}

// accepts returns an error for a child that cannot be significant.
func (a AutoShutdown) accepts(spec Spec) error {
	if spec.Significant && (a == "" || a == ShutdownNever) {
		return fmt.Errorf("child %q: it is Significant, but its supervisor's AutoShutdown is %q; want %q or %q",
			spec.Name, ShutdownNever, AnySignificant, AllSignificant)
	}
	return nil
}

// autoShutdown ends the supervisor if the end of c, a significant child that is not
// started again, says so.
func (s *Supervisor) autoShutdown(c *child) {
	if s.cfg.AutoShutdown == AllSignificant {
		for _, m := range s.children {
			if m != c && m.spec.Significant && m.isUp() {
				return
			}
		}
	}
	if s.log.log != nil {
		_ = call.Do("log handler", func() error {
			s.log.log.Info("significant child ended, and the supervisor stops", "supervisor", s.Name(), "child", c.name)
			return nil
		})
	}
	s.stopAll(fmt.Errorf("significant child %s has ended", c.name), time.Time{})
}
