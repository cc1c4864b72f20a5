package rollout

import "time"

// Scenario is one rolling update and its load.
type Scenario struct {
	Seed  uint64
	Nodes int
	Pods  int // before and after

	Strategy Strategy
	Spread   Spread
	Stop     Stop
	Crowds   []Crowd
	Trip     time.Duration // one way through the network
}

// Strategy is how the Deployment replaces its pods.
type Strategy struct {
	Surge       int           // maxSurge, as a number of pods
	Unavailable int           // maxUnavailable, as a number of pods
	Startup     time.Duration // from a pod's creation until it is ready
	Jitter      time.Duration // of Startup, uniform
	Rate        float64       // pods that the control plane creates, and deletes, in a second; 0 for no limit

	// Room is the number of pods that the cluster has room for, terminating ones
	// included. A Deployment does not wait for terminating pods, but their memory and
	// processors are taken until they are gone. 0 for no limit.
	Room int
}

// Stop is what a pod does from its T0 on.
type Stop struct {
	// Sleep is the time of a preStop hook before the process gets its signal. The
	// cluster learns of the stop when the hook begins: that is T0 here.
	Sleep time.Duration

	// Drain says that the process drains as this library does. Without it the process
	// calls http.Server.Shutdown when the signal comes.
	Drain       bool
	Window      time.Duration // DrainInterval
	AcceptQuiet time.Duration
	AcceptMax   time.Duration
	Linger      time.Duration

	// Follow ends the window when the pod's EndpointSlice says that it stops, and
	// Margin later, but not before Least and not after Window.
	Follow        bool
	Margin, Least time.Duration

	// InFlight is the time after the window, or after Shutdown was called, in which
	// requests may end. Then they are cut.
	InFlight time.Duration

	// TwoSteps says that GOAWAY is sent as RFC 9113, 6.8, recommends: the
	// last stream's id follows one round trip after the first GOAWAY. In one step, as
	// net/http does it, requests on their way are not served.
	TwoSteps bool
}

// Crowd is a kind of client. The numbers are for each pod before the rollout.
type Crowd struct {
	Name  string
	HTTP2 bool // requests share a connection, and none waits for another

	// Conns is the number of connections that each pod has. A client keeps its
	// connection for a Lifetime, of an exponential distribution; 0 for ever.
	Conns    int
	Lifetime time.Duration
	Gap      Gap // from an answer to the next request; on HTTP/2 from request to request

	// Fresh is the number of clients in a second and for each pod that open a
	// connection for one request, in place of Conns.
	Fresh float64

	Service time.Duration // that a request takes, exponential

	// Careless clients send on an idle connection without a look whether the server
	// has closed it. Others look first, and lose a request only when the close is on
	// its way to them.
	Careless bool
}

// opens returns how many connections the crowd opens in a second to each pod.
func (c Crowd) opens() float64 {
	if c.Lifetime > 0 {
		return c.Fresh + float64(c.Conns)/c.Lifetime.Seconds()
	}
	return c.Fresh
}

// rate returns how many requests the crowd sends in a second to each pod.
func (c Crowd) rate() float64 {
	if c.Conns == 0 {
		return c.Fresh
	}
	between := c.Gap.mean()
	if !c.HTTP2 {
		between += c.Service
	}
	return c.Fresh + float64(c.Conns)/between.Seconds()
}

// Lost counts requests without an answer, by the reason.
type Lost struct {
	Refused int // nothing listened
	Reset   int // the connection was closed
	GoAway  int // excluded by a GOAWAY
	Cut     int // still running when the in-flight slice was over
}

// All returns the sum.
func (l Lost) All() int { return l.Refused + l.Reset + l.GoAway + l.Cut }

// Tally is what happened to the requests of one Crowd.
type Tally struct {
	Sent     int // to pods that stop, or after such a pod sent the client away
	Answered int
	Lost     Lost

	// Requests is the number that the crowd sends to all pods during the rollout, by
	// its rate, and never less than Sent.
	Requests float64
}

// PerMillion returns how many of a million requests of the rollout were lost.
func (t Tally) PerMillion() float64 {
	if t.Requests == 0 {
		return 0
	}
	return float64(t.Lost.All()) / t.Requests * 1e6
}

// Result is the outcome of a Scenario.
type Result struct {
	Crowds []Tally // in the order of Scenario.Crowds

	Took        time.Duration // from the begin until all new pods are ready
	Gone        time.Duration // until the last old pod is gone
	Terminating time.Duration // that pods spent from T0 until they were gone, summed
	Peak        int           // most pods at once, terminating ones included
	Events      int
}

// Run simulates the scenario. A rollout needs nodes, pods, a Surge or Unavailable, Room for
// one more pod, delays whose points rise, and in each Crowd either Fresh, or Conns with a Gap.
func Run(s Scenario) Result {
	sim := newSim(s)
	sim.run()
	return sim.result()
}
