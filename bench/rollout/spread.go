package rollout

import (
	"math"
	"time"
)

// Delay is a distribution of times, given by points: At[i] of all times are at most
// Times[i]. Between two points, and after the last one, the time beyond a point is
// exponential; with Linear it is uniform between points, and the last point is 1.
type Delay struct {
	At     []float64 // rising, the first is 0
	Times  []time.Duration
	Linear bool
}

// Always returns a Delay of exactly d.
func Always(d time.Duration) Delay {
	return Delay{At: []float64{0, 1}, Times: []time.Duration{d, d}, Linear: true}
}

// Uniform returns a Delay that is uniformly distributed from low to high.
func Uniform(low, high time.Duration) Delay {
	return Delay{At: []float64{0, 1}, Times: []time.Duration{low, high}, Linear: true}
}

// Through returns an exponential Delay above low, of which 99 % are at most p99.
func Through(low, p99 time.Duration) Delay {
	return Delay{At: []float64{0, 0.99}, Times: []time.Duration{low, p99}}
}

// rarest is the share of the longest times that are never drawn.
const rarest = 1e-7

// Quantile returns the time that the share u of all times does not exceed.
func (d Delay) Quantile(u float64) time.Duration {
	u = min(u, 1-rarest)
	i := 1
	for i < len(d.At)-1 && u > d.At[i] {
		i++
	}
	low, high := d.At[i-1], d.At[i]
	var part float64
	if d.Linear {
		part = (u - low) / (high - low)
	} else {
		part = math.Log((1-u)/(1-low)) / math.Log((1-high)/(1-low))
	}
	return d.Times[i-1] + time.Duration(part*float64(d.Times[i]-d.Times[i-1]))
}

// Longest returns the longest time that is drawn.
func (d Delay) Longest() time.Duration { return d.Quantile(1) }

// Spread says when the parts that open connections learn of a stop: the nodes'
// kube-proxies, or the parts of a load balancer that polls.
type Spread struct {
	Slice   Delay // from T0 until the EndpointSlice, or the health check, says so: one for each pod
	Node    Delay // from then on until a source knows: one for each pod and source
	Sources int   // that open connections; 0 for one on each node
	Late    float64
	LateBy  time.Duration // the share Late of the sources are later than Node says by this much, always the same ones
}

// Longest returns the longest time from T0 until a source knows.
func (s Spread) Longest() time.Duration {
	d := s.Slice.Longest() + s.Node.Longest()
	if s.Late > 0 {
		d += s.LateBy
	}
	return d
}

// knows returns when the source knows that the pod stops, from the pod's T0 on.
func (s Spread) knows(seed uint64, pod, source, sources int) time.Duration {
	draw := newStream(seed, 1, uint64(pod), uint64(source))
	d := s.slice(seed, pod) + s.Node.Quantile(draw.unit())
	if float64(source) < s.Late*float64(sources) {
		d += s.LateBy
	}
	return d
}

func (s Spread) slice(seed uint64, pod int) time.Duration {
	draw := newStream(seed, 2, uint64(pod))
	return s.Slice.Quantile(draw.unit())
}

// stream is a source of random numbers in eight bytes (splitmix64), so that each pod
// and each client can have one of its own. What one of them draws then never depends
// on what another does.
type stream uint64

// newStream returns the stream for these numbers.
func newStream(numbers ...uint64) stream {
	s := stream(0)
	for _, n := range numbers {
		s = stream(mix(uint64(s) ^ mix(n)))
	}
	return s
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *stream) next() uint64 {
	out := mix(uint64(*s))
	*s += 0x9e3779b97f4a7c15
	return out
}

// unit returns a number in (0, 1).
func (s *stream) unit() float64 { return (float64(s.next()>>11) + 0.5) / (1 << 53) }

func (s *stream) below(n int) int { return int(s.unit() * float64(n)) }

// exp returns a time of an exponential distribution.
func (s *stream) exp(mean time.Duration) time.Duration {
	return time.Duration(-math.Log(s.unit()) * float64(mean))
}

// Gap is the distribution of a client's pause between an answer and its next request.
// It is exponential with a Mean and never longer than Max, or, without a Mean, uniform
// up to Max. Max is also the time after which the client would give an idle connection up.
type Gap struct{ Mean, Max time.Duration }

func (g Gap) draw(s *stream) time.Duration {
	if g.Mean == 0 {
		return time.Duration(s.unit() * float64(g.Max))
	}
	for {
		if d := s.exp(g.Mean); d <= g.Max {
			return d
		}
	}
}

// residual returns how much of a pause is left at a random moment: a random part of a pause
// that is drawn in proportion to its length.
func (g Gap) residual(s *stream) time.Duration {
	// A pause that is drawn in proportion to its length has the density of the pause times
	// its length: for a uniform pause the square root of a uniform number, for an exponential
	// one the sum of two.
	if g.Mean == 0 {
		return time.Duration(s.unit() * math.Sqrt(s.unit()*float64(g.Max)*float64(g.Max)))
	}
	for {
		if d := s.exp(g.Mean) + s.exp(g.Mean); d <= g.Max {
			return time.Duration(s.unit() * float64(d))
		}
	}
}

// mean returns the mean pause.
func (g Gap) mean() time.Duration {
	if g.Mean == 0 {
		return g.Max / 2
	}
	cut := math.Exp(-float64(g.Max) / float64(g.Mean))
	return g.Mean - time.Duration(float64(g.Max)*cut/(1-cut))
}
