package host

import (
	"fmt"
	"sync"
	"time"
)

// Rate bounds how many messages a worker handles in a time: attempts and timers count
// too. The zero value is no bound. Each worker has one holder, and a new holder begins
// with a full burst. A member of a group that waits holds up its group.
type Rate struct {
	Messages int           `json:"messages,omitempty"`
	Per      time.Duration `json:"per,omitempty"`   // defaults to a second
	Burst    int           `json:"burst,omitempty"` // messages at once after a pause; defaults to Messages
}

func (r Rate) validate() error {
	if r.Messages < 0 || r.Per < 0 || r.Burst < 0 {
		return fmt.Errorf("rate: %w: messages %d, per %v and burst %d must not be negative", ErrInvalid, r.Messages, r.Per, r.Burst)
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
	def(&r.Per, time.Second)
	def(&r.Burst, r.Messages)
	return r
}

// bucket has the tokens of a rate, one for each message. The zero value is full.
type bucket struct {
	mu   sync.Mutex
	gone float64 // tokens that were taken and have not come back; more than the burst are taken in advance
	at   time.Time
}

// take takes a token, and returns how long to wait until it is there.
func (b *bucket) take(r Rate, now time.Time) time.Duration {
	if r.Messages == 0 {
		return 0
	}
	r = r.withDefaults()
	b.mu.Lock()
	defer b.mu.Unlock()
	each := float64(r.Per) / float64(r.Messages)
	b.gone = max(0, b.gone-float64(now.Sub(b.at))/each) + 1
	b.at = now
	return time.Duration(max(0, b.gone-float64(r.Burst)) * each)
}

// pace returns how long a message has to wait because of its worker's rate. It waits
// once for each attempt.
func (d *delivery) pace() time.Duration {
	if d.paid {
		d.paid = false
		return 0
	}
	wait := d.member.tokens.take(d.member.record.Rate, time.Now())
	d.paid = wait > 0
	return wait
}
