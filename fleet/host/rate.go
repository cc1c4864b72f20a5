package host

import (
	"cmp"
	"fmt"
	"time"

	"golang.org/x/time/rate"
)

// Rate bounds how many messages a worker handles in a time: attempts and timers count
// too. The zero value bounds nothing. Each worker has one holder, and a new holder begins
// with a full burst. A member of a group that waits holds up its group.
type Rate struct {
	Messages int           `json:"messages,omitempty"`
	Per      time.Duration `json:"per,omitempty"`   // defaults to a second; in nanoseconds in JSON
	Burst    int           `json:"burst,omitempty"` // messages at once after a pause; defaults to Messages
}

func (r Rate) validate() error {
	if r.Messages < 0 || r.Per < 0 || r.Burst < 0 {
		return fmt.Errorf("rate: %w: messages %d, per %v and burst %d must not be negative",
			ErrInvalid, r.Messages, r.Per, r.Burst)
	}
	if r.Messages == 0 && r != (Rate{}) {
		return fmt.Errorf("rate: %w: it has no messages", ErrInvalid)
	}
	return nil
}

// String returns the rate as people write it, "" for no bound.
func (r Rate) String() string {
	if r.Messages == 0 {
		return ""
	}
	r = r.withDefaults()
	return fmt.Sprintf("%d per %v, burst %d", r.Messages, r.Per, r.Burst)
}

func (r Rate) withDefaults() Rate {
	r.Per = cmp.Or(r.Per, time.Second)
	r.Burst = cmp.Or(r.Burst, r.Messages)
	return r
}

// newTokens returns a full bucket of tokens for a rate, or nil for a rate without a bound.
func newTokens(r Rate) *rate.Limiter {
	if r.Messages == 0 {
		return nil
	}
	r = r.withDefaults()
	return rate.NewLimiter(rate.Limit(float64(r.Messages)/r.Per.Seconds()), r.Burst)
}

// takeToken takes a token of the worker's rate, or returns how long the message has to wait for one.
func (m *member) takeToken() (wait time.Duration) {
	if m.tokens == nil {
		return 0
	}
	token := m.tokens.Reserve()
	if wait = token.Delay(); wait > 0 {
		token.Cancel()
	}
	return wait
}
