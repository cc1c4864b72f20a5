package httpdrain

import (
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxPanicText is how much is kept of what a handler said as it panicked, in bytes.
const maxPanicText = 200

// panics counts the panics of handlers.
type panics struct {
	mu     sync.Mutex // guards the fields below
	count  uint64
	last   string
	latest [3]time.Time // the newest last
}

// note counts a panic of this value.
func (p *panics) note(now time.Time, value any) {
	said := text.Clip(fmt.Sprint(value), maxPanicText)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	p.last = said
	p.latest = [3]time.Time{p.latest[1], p.latest[2], now}
}

// look returns how many panics there were, what the last one said, and when the last but two was.
func (p *panics) look() (count uint64, last string, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.last, p.latest[0]
}
