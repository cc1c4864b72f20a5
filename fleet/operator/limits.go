package operator

import (
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// budget bounds how much all callers hold at one time, and how much each of them: the bytes
// of bodies, and open watches.
type budget struct {
	all, each int64

	mu   sync.Mutex // guards the fields below
	held int64
	by   map[string]int64 // by caller
}

func newBudget(all, each int64) *budget {
	return &budget{all: all, each: each, by: map[string]int64{}}
}

// take takes n for a caller, and returns false when that is too much.
func (b *budget) take(caller string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held+n > b.all || b.by[caller]+n > b.each {
		return false
	}
	b.held += n
	b.by[caller] += n
	return true
}

func (b *budget) give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.by[caller] -= n; b.by[caller] == 0 {
		delete(b.by, caller)
	}
}

// limiters are token buckets by name, in bounded memory.
type limiters struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex // guards the fields below
	names map[string]*rate.Limiter
}

func newLimiters(perSecond float64, burst int) *limiters {
	return &limiters{rate: rate.Limit(perSecond), burst: burst, names: map[string]*rate.Limiter{}}
}

// maxLimiters is how many buckets there may be before idle ones are removed.
const maxLimiters = 4096

// take takes one token. When there is none it returns the time until the next.
func (l *limiters) take(name string) (time.Duration, bool) {
	if now := time.Now(); l.bucket(name, now).AllowN(now, 1) {
		return 0, true
	}
	return time.Duration(float64(time.Second) / float64(l.rate)), false
}

// has reports whether there is a token, without taking it.
func (l *limiters) has(name string) bool {
	now := time.Now()
	return l.bucket(name, now).TokensAt(now) >= 1
}

func (l *limiters) bucket(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.names[name]
	if b == nil {
		if len(l.names) >= maxLimiters {
			// A full bucket equals a new one.
			maps.DeleteFunc(l.names, func(_ string, old *rate.Limiter) bool { return old.TokensAt(now) >= float64(l.burst) })
		}
		if len(l.names) >= maxLimiters {
			clear(l.names)
		}
		b = rate.NewLimiter(l.rate, l.burst)
		l.names[name] = b
	}
	return b
}
