package worker

import "time"

// message is a message to the loop of a [Supervisor]: an event, or the request of
// a caller. Other goroutines only post messages. The loop alone changes the
// children, in [Supervisor.handle].
type message interface{ isMessage() }

// told makes a struct that embeds it a message.
type told struct{}

func (told) isMessage() {}

func (*instanceEnded) isMessage() {}

// The requests of callers. A reply has room for one answer, so that the loop
// never waits.
type (
	begin    struct{ told } // Start was called
	addChild struct {
		told
		spec  Spec
		reply chan<- error
	}
	addKin struct { // to a Dynamic
		told
		make  func(name string) (Worker, error)
		name  string // set before the reply
		reply chan error
	}
	removeChild struct {
		told
		name  string
		reply chan<- error
	}
	stopChild struct {
		told
		name  string
		reply chan<- error
	}
	restartChild struct {
		told
		name  string
		reply chan<- error
	}
	replaceChild struct {
		told
		spec  Spec
		reply chan<- error
	}
	holdRestarts struct{ told } // start no more children
	holdStarts   struct {       // while the supervisor is suspended
		told
		hold  bool
		reply chan<- error
	}
	stopAll struct { // stop all children
		told
		cause error
		by    time.Time // zero for no limit
	}
	stopNow struct { // stop all remaining children at once
		told
		by time.Time
	}
	flush struct { // reply once all earlier messages were handled
		told
		reply chan<- error
	}
)

// The events.
type (
	startEnded struct {
		told
		c   *child
		op  *startOp
		err error
	}
	goOn struct { // more members of the group can start
		told
		g *group
	}
	startOverdue struct { // the child's StartTimeout is over
		told
		c  *child
		op *startOp
	}
	instanceEnded instance // or the instance is gone
	stopEnded     struct { // a call of Stop has returned
		told
		c   *child
		i   *instance
		err error
	}
	stopOverdue struct { // a call of Stop ignores its context
		told
		c *child
		i *instance
	}
	askedOverdue struct{ told } // a function that was asked to stop has not returned in time
	backoffOver  struct {
		told
		g *group
	}
	probeDue struct {
		told
		c *child
		p *probing
	}
	probeEnded struct {
		told
		c   *child
		p   *probing
		err error
	}
)

// loop handles one message after the other until the supervisor has ended and all
// its children are gone.
func (s *Supervisor) loop() error {
	var batch []message
	for !s.ended || s.calls > 0 || len(s.abandoned) > 0 {
		batch, _ = s.box.Take(batch)
		for _, m := range batch {
			s.handle(m)
			if s.suspended {
				s.moved.Notify()
			}
			if g := s.first; g != nil {
				s.advance(g) // a child that has left the group may hold it up no more
				if g.phase == groupOver {
					s.first = nil
				}
			}
		}
	}
	s.box.Close()
	s.Finish(s.failure)
	return nil
}

func (s *Supervisor) handle(m message) {
	switch m := m.(type) {
	case begin:
		s.begin()
	case addChild:
		s.add(m)
	case *addKin:
		s.addKin(m)
	case removeChild:
		s.remove(m)
	case stopChild:
		s.stopChild(m)
	case restartChild:
		s.restartChild(m)
	case replaceChild:
		s.replaceChild(m)
	case holdRestarts:
		s.holdRestarts()
	case holdStarts:
		s.holdStarts(m)
	case stopAll:
		s.stopAll(m.cause, m.by)
	case stopNow:
		s.stopNow(m.by)
	case flush:
		m.reply <- nil
	case startEnded:
		s.startEnded(m.c, m.op, m.err)
	case startOverdue:
		s.startOverdue(m.c, m.op)
	case *instanceEnded:
		s.instanceEnded(m.c, (*instance)(m))
	case goOn:
		s.advance(m.g)
	case askedOverdue:
		s.askedOverdue()
	case stopEnded:
		s.stopEnded(m.c, m.i, m.err)
	case stopOverdue:
		s.stopOverdue(m.c, m.i)
	case backoffOver:
		s.backoffOver(m.g)
	case probeDue:
		s.probeDue(m.c, m.p)
	case probeEnded:
		s.probeEnded(m.c, m.p, m.err)
	}
}
