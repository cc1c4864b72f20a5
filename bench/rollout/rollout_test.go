package rollout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = time.Second

// defaults returns a drain with the defaults of lifecycle.Config.
func defaults() Stop {
	return Stop{Drain: true, Window: 5 * second, AcceptQuiet: second, AcceptMax: 7500 * time.Millisecond, Linger: 5 * second, InFlight: 10 * second}
}

func instant() Spread { return Spread{Slice: Always(0), Node: Always(0)} }

// exponential returns a Spread of that mean.
func exponential(mean time.Duration) Spread {
	return Spread{Slice: Always(0), Node: Through(0, time.Duration(float64(mean)*math.Log(100)))}
}

// base returns a rollout that stops its pods in four waves.
func base(seed uint64, pods int) Scenario {
	return Scenario{
		Seed: seed, Nodes: 20, Pods: pods, Trip: 500 * time.Microsecond, Stop: defaults(), Spread: exponential(second),
		Strategy: Strategy{Surge: max(1, pods/4), Startup: 5 * second, Jitter: 5 * second, Rate: 200},
	}
}

// anyScenario returns a small scenario, with anything in it.
func anyScenario(r *rand.Rand) Scenario {
	s := base(r.Uint64(), 1+r.IntN(60))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d) + 1)) }
	s.Nodes = 1 + r.IntN(50)
	s.Trip = upTo(5 * time.Millisecond)
	s.Strategy.Unavailable = r.IntN(3)
	s.Spread = exponential(1 + upTo(5*second))
	if r.IntN(3) == 0 {
		s.Spread = Spread{Slice: Uniform(0, upTo(second)), Node: Uniform(upTo(second), 10*second), Sources: 1 + r.IntN(5), Late: 0.1, LateBy: upTo(20 * second)}
	}
	s.Stop = Stop{
		Drain: r.IntN(4) > 0, Window: upTo(10 * second), AcceptQuiet: upTo(2 * second), AcceptMax: upTo(8 * second),
		Linger: upTo(10 * second), InFlight: upTo(10 * second), TwoSteps: r.IntN(2) == 0,
		Follow: r.IntN(4) == 0, Margin: upTo(5 * second), Least: second,
	}
	if r.IntN(3) == 0 {
		s.Stop.Sleep = upTo(5 * second)
	}
	for n := range 1 + r.IntN(4) {
		c := Crowd{Name: fmt.Sprint(n), Service: upTo(200 * time.Millisecond), Careless: r.IntN(2) == 0}
		if r.IntN(3) == 0 {
			c.Fresh = 5 * r.Float64()
		} else {
			c.Conns, c.HTTP2 = 1+r.IntN(5), r.IntN(2) == 0
			c.Gap = Gap{Max: 20*time.Millisecond + upTo(10*second)}
			if r.IntN(2) == 0 {
				c.Gap.Mean = 10*time.Millisecond + upTo(3*second)
			}
			if r.IntN(2) == 0 {
				c.Lifetime = second + upTo(60*second)
			}
		}
		s.Crowds = append(s.Crowds, c)
	}
	return s
}

// In any scenario every request has exactly one end, and every pod is replaced. Run
// itself compares what was sent with what was answered and lost.
func TestEveryRequestHasOneEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all Lost
	sent := 0
	for range 150 {
		s := anyScenario(r)
		res := Run(s)
		if res.Took <= 0 || res.Gone < 0 || res.Peak < s.Pods {
			t.Errorf("%+v: %+v: the rollout did not end", s, res)
		}
		for i, c := range res.Crowds {
			if c.Sent != c.Answered+c.Lost.All() || c.Answered < 0 || c.Requests < float64(c.Sent) {
				t.Errorf("crowd %d: %+v", i, c)
			}
			sent += c.Sent
			all.Refused += c.Lost.Refused
			all.Reset += c.Lost.Reset
			all.GoAway += c.Lost.GoAway
			all.Cut += c.Lost.Cut
		}
	}
	if sent < 10_000 || all.Refused == 0 || all.Reset == 0 || all.GoAway == 0 || all.Cut == 0 {
		t.Errorf("%d requests, lost %+v: the scenarios do not reach every end", sent, all)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	s := anyScenario(rand.New(rand.NewPCG(3, 4)))
	if a, b := Run(s), Run(s); !reflect.DeepEqual(a, b) {
		t.Errorf("two runs differ:\n%+v\n%+v", a, b)
	}
	a := Run(s)
	s.Seed++
	if b := Run(s); reflect.DeepEqual(a, b) {
		t.Errorf("another seed gives the same: %+v", a)
	}
}

// With the same arrivals a longer window never loses more. This holds exactly when a
// request's end does not depend on the one before it.
func TestLongerWindowNeverLosesMore(t *testing.T) {
	for name, s := range map[string]Scenario{
		"new connections": {Crowds: []Crowd{{Name: "fresh", Fresh: 4, Service: 50 * time.Millisecond}}, Spread: exponential(4 * second)},
		"kept connections": {Spread: instant(), Crowds: []Crowd{
			{Name: "careless", Conns: 5, Gap: Gap{Mean: 5 * second, Max: 60 * second}, Careless: true},
			{Name: "careful", Conns: 5, Gap: Gap{Max: 8 * second}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			fell := 0
			for seed := range uint64(6) {
				last := math.MaxInt
				for _, window := range []time.Duration{0, second, 2 * second, 3 * second, 5 * second, 8 * second, 13 * second, 21 * second, 60 * second} {
					one := base(seed, 40)
					one.Crowds, one.Spread, one.Stop.Window = s.Crowds, s.Spread, window
					lost := 0
					for _, c := range Run(one).Crowds {
						lost += c.Lost.All()
					}
					if lost > last {
						t.Errorf("seed %d: a window of %v loses %d, a shorter one %d", seed, window, lost, last)
					}
					if lost < last {
						fell++
					}
					last = lost
				}
				if last != 0 {
					t.Errorf("seed %d: a window of a minute loses %d", seed, last)
				}
			}
			if fell < 20 {
				t.Errorf("the loss fell only %d times: the test is blind", fell)
			}
		})
	}
}

func TestLongerLingerNeverLosesMore(t *testing.T) {
	for seed := range uint64(6) {
		last := math.MaxInt
		for _, linger := range []time.Duration{0, second, 2 * second, 5 * second, 10 * second, 60 * second} {
			s := base(seed, 40)
			s.Spread, s.Stop.Linger, s.Stop.InFlight = instant(), linger, 100*second
			s.Crowds = []Crowd{{Name: "careless", Conns: 5, Gap: Gap{Mean: 8 * second, Max: 60 * second}, Careless: true}}
			lost := Run(s).Crowds[0].Lost.All()
			if lost > last || linger == 0 && lost == 0 {
				t.Errorf("seed %d: a linger of %v loses %d, a shorter one %d", seed, linger, lost, last)
			}
			last = lost
		}
		if last != 0 {
			t.Errorf("seed %d: a linger of a minute loses %d", seed, last)
		}
	}
}

// near fails the test unless got is what a Poisson variable of that mean may be.
func near(t *testing.T, what string, got int, mean float64) {
	t.Helper()
	t.Logf("%s: %d, in closed form %.1f", what, got, mean)
	if math.Abs(float64(got)-mean) > 4*math.Sqrt(mean)+1 {
		t.Errorf("%s: %d, in closed form %.1f", what, got, mean)
	}
}

// TestClosedForms compares the simulation with cases that have a formula.
func TestClosedForms(t *testing.T) {
	const pods = 1000
	fresh := []Crowd{{Name: "fresh", Fresh: 3}}
	t.Run("Shutdown at once refuses until the last node knows", func(t *testing.T) {
		s := base(1, pods)
		s.Crowds, s.Stop, s.Spread = fresh, Stop{InFlight: second}, exponential(2*second)
		near(t, "refused", Run(s).Crowds[0].Lost.Refused, pods*3*2)
	})
	t.Run("a window leaves the tail", func(t *testing.T) {
		for _, window := range []float64{1, 3, 6} {
			s := base(2, pods)
			s.Crowds, s.Spread = fresh, exponential(2*second)
			s.Stop.AcceptQuiet, s.Stop.AcceptMax, s.Stop.Linger = 0, 0, 0
			s.Stop.Window = time.Duration(window * float64(second))
			near(t, fmt.Sprintf("refused after %v s", window), Run(s).Crowds[0].Lost.Refused, pods*3*2*math.Exp(-window/2))
		}
	})
	t.Run("connections keep the listener open for AcceptMax", func(t *testing.T) {
		s := base(8, pods)
		s.Stop.AcceptMax = 2500 * time.Millisecond
		s.Crowds, s.Spread = []Crowd{{Name: "fresh", Fresh: 20}}, Spread{Slice: Always(4 * second), Node: Always(6 * second)}
		near(t, "refused", Run(s).Crowds[0].Lost.Refused, pods*20*2.5) // open until 7.5 s, and known after 10 s
	})
	t.Run("rare ones do not", func(t *testing.T) {
		s := base(9, pods)
		s.Crowds, s.Spread = []Crowd{{Name: "fresh", Fresh: 0.05}}, Spread{Slice: Always(4 * second), Node: Always(6 * second)}
		// Open until 6 s, and until twice the time of a connection that came after 3 s.
		near(t, "refused", Run(s).Crowds[0].Lost.Refused, pods*0.05*(4-0.05*9))
	})
	t.Run("late sources are late for every pod", func(t *testing.T) {
		s := base(10, pods)
		s.Crowds, s.Spread = fresh, Spread{Slice: Always(0), Node: Always(second), Late: 0.1, LateBy: 60 * second}
		s.Stop.AcceptQuiet, s.Stop.AcceptMax = 0, 0
		near(t, "refused", Run(s).Crowds[0].Lost.Refused, pods*3*0.1*(61-5))
	})
	t.Run("a careless client loses one request for each connection", func(t *testing.T) {
		s := base(3, pods)
		s.Crowds, s.Stop, s.Spread = []Crowd{{Name: "careless", Conns: 3, Gap: Gap{Max: 4 * second}, Careless: true}}, Stop{InFlight: second}, instant()
		if lost := Run(s).Crowds[0].Lost; lost != (Lost{Reset: 3 * pods}) {
			t.Errorf("lost %+v, want %d reset", lost, 3*pods)
		}
	})
	t.Run("a careful one only while the close is on its way", func(t *testing.T) {
		s := base(4, pods)
		s.Trip = 10 * time.Millisecond
		s.Crowds, s.Stop, s.Spread = []Crowd{{Name: "careful", Conns: 20, Gap: Gap{Mean: second, Max: 60 * second}}}, Stop{InFlight: second}, instant()
		// A trip before T0 it is too late for the request, and a trip after T0 the close is known.
		near(t, "reset", Run(s).Crowds[0].Lost.Reset, pods*20*(1-math.Exp(-0.02)))
	})
	t.Run("window and linger leave the long pauses", func(t *testing.T) {
		s := base(5, pods)
		s.Crowds = []Crowd{{Name: "careless", Conns: 3, Gap: Gap{Mean: 4 * second, Max: 300 * second}, Careless: true}}
		s.Spread, s.Stop.InFlight = instant(), 100*second
		near(t, "reset", Run(s).Crowds[0].Lost.Reset, pods*3*math.Exp(-10.0/4))
	})
	t.Run("uniform pauses", func(t *testing.T) {
		s := base(6, pods)
		s.Crowds = []Crowd{{Name: "careless", Conns: 3, Gap: Gap{Max: 16 * second}, Careless: true}}
		s.Spread = instant()
		near(t, "reset", Run(s).Crowds[0].Lost.Reset, pods*3*(1-10.0/16)*(1-10.0/16))
	})
}

// With a GOAWAY in one step, clients of HTTP/2 lose the requests that are on their way.
// With two steps they lose none.
func TestTwoStepsLoseNoStream(t *testing.T) {
	s := base(7, 2000)
	s.Trip, s.Spread = 10*time.Millisecond, instant()
	s.Crowds = []Crowd{{Name: "HTTP/2", HTTP2: true, Conns: 2, Gap: Gap{Mean: second, Max: 60 * second}, Service: 5 * time.Millisecond}}
	near(t, "excluded", Run(s).Crowds[0].Lost.GoAway, 2000*2*0.02)
	s.Stop.TwoSteps = true
	if lost := Run(s).Crowds[0].Lost; lost != (Lost{}) {
		t.Errorf("in two steps: %+v", lost)
	}
}

// The Deployment is replaced as fast as its strategy allows, and no faster.
func TestRolloutTakesItsTime(t *testing.T) {
	for name, tt := range map[string]struct {
		strategy Strategy
		want     time.Duration
	}{
		"all at once":          {Strategy{Surge: 100, Startup: 10 * second}, 10 * second},
		"four waves":           {Strategy{Surge: 25, Startup: 10 * second}, 40 * second},
		"at a rate":            {Strategy{Surge: 100, Startup: 10 * second, Rate: 10}, 10*second + 99*100*time.Millisecond},
		"terminating pods":     {Strategy{Surge: 25, Startup: 10 * second, Room: 125}, 40*second + 3*6*second},
		"unavailable":          {Strategy{Unavailable: 25, Startup: 10 * second}, 40 * second},
		"unavailable, no room": {Strategy{Unavailable: 25, Startup: 10 * second, Room: 100}, 4 * 16 * second},
	} {
		t.Run(name, func(t *testing.T) {
			s := base(1, 100)
			s.Strategy = tt.strategy // a stop without clients takes 6 s: window and quiet accept
			if got := Run(s); got.Took != tt.want {
				t.Errorf("it took %v, want %v", got.Took, tt.want)
			}
		})
	}
}

// A window that follows the EndpointSlices lasts until the slice and the margin, between
// its limits.
func TestWindowThatFollows(t *testing.T) {
	for slice, want := range map[time.Duration]time.Duration{0: 3 * second, 4 * second: 6 * second, 30 * second: 10 * second} {
		s := base(1, 10)
		s.Spread.Slice = Always(slice)
		s.Stop.Window, s.Stop.Follow, s.Stop.Margin, s.Stop.Least = 10*second, true, 2*second, 3*second
		if got := Run(s).Terminating / 10; got != want+second { // and AcceptQuiet
			t.Errorf("with the slice after %v a stop takes %v, want %v", slice, got, want+second)
		}
	}
}

func TestDelays(t *testing.T) {
	points := Delay{At: []float64{0, 0.5, 0.99}, Times: []time.Duration{second, 3 * second, 10 * second}}
	for _, tt := range []struct {
		d    Delay
		u    float64
		want time.Duration
	}{
		{points, 0, second}, {points, 0.5, 3 * second}, {points, 0.99, 10 * second},
		{points, 0.75, 3*second + 7*second*1771/10_000}, // ln 2 of ln 50
		{Through(second, 5*second), 0.9999, 9 * second}, // twice the logarithm of 0.99
		{Through(second, 5*second), 1, 15 * second},     // 3.5 times: nothing is rarer than one in ten million
		{Uniform(second, 3*second), 0.25, 1500 * time.Millisecond}, {Always(second), 0.7, second},
	} {
		if got := tt.d.Quantile(tt.u); (got - tt.want).Abs() > time.Millisecond {
			t.Errorf("%+v at %v is %v, want %v", tt.d, tt.u, got, tt.want)
		}
	}
	if got := points.Longest(); got != points.Quantile(1) {
		t.Errorf("the longest is %v", got)
	}
}

// The drawn pauses have the mean from which the crowd's rate is computed. The rest of a
// pause that is under way has the mean that renewal theory gives: the mean square of
// pauses over twice their mean.
func TestGaps(t *testing.T) {
	for _, g := range []Gap{{Max: 4 * second}, {Mean: 2 * second, Max: 100 * second}, {Mean: 2 * second, Max: 3 * second}} {
		const n = 200_000
		random := newStream(1)
		var sum, squares, rest float64
		for range n {
			d := g.draw(&random).Seconds()
			sum += d
			squares += d * d
			rest += g.residual(&random).Seconds()
		}
		if mean := sum / n; math.Abs(mean-g.mean().Seconds()) > 0.01*mean {
			t.Errorf("%+v: the mean is %v, and mean says %v", g, mean, g.mean())
		}
		if want := squares / (2 * sum); math.Abs(rest/n-want) > 0.01*want {
			t.Errorf("%+v: the rest is %v on average, want %v", g, rest/n, want)
		}
	}
}

// BenchmarkRollout replaces a thousand pods on a hundred nodes.
func BenchmarkRollout(b *testing.B) {
	s := base(1, 1000)
	s.Nodes, s.Spread = 100, exponential(2*second)
	s.Crowds = []Crowd{
		{Name: "fresh", Fresh: 2, Service: 20 * time.Millisecond},
		{Name: "kept", Conns: 10, Lifetime: 100 * second, Gap: Gap{Mean: second, Max: 60 * second}, Service: 20 * time.Millisecond},
		{Name: "HTTP/2", HTTP2: true, Conns: 2, Gap: Gap{Mean: 200 * time.Millisecond, Max: 60 * second}, Service: 20 * time.Millisecond},
	}
	events := 0
	for b.Loop() {
		events += Run(s).Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
