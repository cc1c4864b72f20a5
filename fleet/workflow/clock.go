package workflow

import (
	"context"
	"math"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/servertime"
)

// clock tells the server's time.
type clock struct{ servertime.Clock }

// lookEvery is how old a look at the server's clock may get.
const lookEvery = 5 * time.Second

// look asks the server for its time when the last look is too old.
func (c *clock) look(ctx context.Context, b *bucket) error {
	return c.Look(ctx, b.pace.Of(lookEvery), func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		stream, err := b.js.Stream(ctx, b.stream)
		if err != nil {
			return time.Time{}, natserr.Plain(err)
		}
		return stream.CachedInfo().TimeStamp, nil
	})
}

// instant returns a time in nanoseconds of Unix time, which ends in the year 2262. It returns
// the last nanosecond for all later times, and the first for all earlier ones.
func instant(t time.Time) int64 {
	switch year := t.Year(); {
	case year > 2261:
		return math.MaxInt64
	case year < 1679:
		return math.MinInt64
	}
	return t.UnixNano()
}

// plus adds a duration to an instant.
func plus(ns int64, d time.Duration) int64 {
	if sum := ns + int64(d); d < 0 || sum >= ns {
		return sum
	}
	return math.MaxInt64
}
