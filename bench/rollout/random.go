package rollout

import (
	"math"
	"time"
)

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

// residual returns the rest of a pause that an observer meets who comes at any time: a
// part of a pause that is drawn in proportion to its length.
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
