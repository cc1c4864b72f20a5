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

// Spread says how the news of a stop reaches those that open connections: the nodes'
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
