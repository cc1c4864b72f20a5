package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// ledger accounts for every request of one kind of client. All methods may be
// called concurrently.
type ledger struct {
	kind   string
	onLoss func() // called for each loss, may be nil; it must not block

	mu       sync.Mutex // guards the fields below
	sent     int
	answered int         // with the wanted status
	status   map[int]int // of all answers
	fresh    int         // answered requests that were the first on their connection
	goodbyes int         // answers, or events of a stream, that asked the client to reconnect
	unsent   int         // requests that the client took back before it sent anything, and sent again
	slowest  time.Duration
	losses   []loss
}

// loss is one request without the wanted answer.
type loss struct {
	sent time.Time
	at   time.Time // when it was noticed
	conn string    // the connection
	why  string
}

// answer is the outcome of one request.
type answer struct {
	sent    time.Time
	conn    string // the connection, for people
	fresh   bool   // the first on its connection
	goodbye bool   // the server asked the client to reconnect
	status  int    // 0: there was no answer
	err     error
}

func newLedger(kind string) *ledger { return &ledger{kind: kind, status: make(map[int]int)} }

func (l *ledger) enter(a answer, want int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	if a.status != 0 {
		l.status[a.status]++
	}
	if a.goodbye {
		l.goodbyes++
	}
	if a.err == nil && a.status == want {
		l.answered++
		if a.fresh {
			l.fresh++
		}
		l.slowest = max(l.slowest, now.Sub(a.sent))
		return
	}
	why := fmt.Sprintf("status %d", a.status)
	if a.err != nil {
		why = a.err.Error()
	}
	l.losses = append(l.losses, loss{a.sent, now, a.conn, why})
	if l.onLoss != nil {
		l.onLoss()
	}
}

// lost returns the number of lost and of sent requests.
func (l *ledger) lost() (lost, sent int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.losses), l.sent
}

// seen returns how often a server asked a client to reconnect: without any, the
// test has not met a server that drains.
func (l *ledger) seen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.goodbyes
}

func (l *ledger) tookBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsent++
}

// merge adds what the other one, of the same kind, has.
func (l *ledger) merge(other *ledger) {
	other.mu.Lock()
	defer other.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent += other.sent
	l.answered += other.answered
	l.fresh += other.fresh
	l.goodbyes += other.goodbyes
	l.unsent += other.unsent
	l.slowest = max(l.slowest, other.slowest)
	l.losses = append(l.losses, other.losses...)
	for code, n := range other.status {
		l.status[code] += n
	}
}

// worst returns the time of the slowest answer, and the number of requests that were
// taken back.
func (l *ledger) worst() (slowest time.Duration, unsent int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slowest, l.unsent
}

func (l *ledger) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var statuses []string
	for _, code := range slices.Sorted(maps.Keys(l.status)) {
		statuses = append(statuses, fmt.Sprintf("%d: %d", code, l.status[code]))
	}
	return fmt.Sprintf("%-27s sent %5d  answered %5d  lost %4d  | on new connections %5d  sent away %4d  slowest %6s  status {%s}",
		l.kind, l.sent, l.answered, len(l.losses), l.fresh, l.goodbyes, l.slowest.Round(time.Millisecond), strings.Join(statuses, ", "))
}

// explain lists the losses, each with its time relative to the stops of pods.
func (l *ledger) explain(stops []stop, limit int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for i, lo := range l.losses {
		if i == limit {
			fmt.Fprintf(&b, "  … and %d more\n", len(l.losses)-limit)
			break
		}
		fmt.Fprintf(&b, "  %s: lost after %v on %s: %s", l.kind, lo.at.Sub(lo.sent).Round(time.Millisecond), lo.conn, lo.why)
		for _, s := range stops {
			if since := lo.at.Sub(s.at); since > 0 && since < 40*time.Second {
				fmt.Fprintf(&b, "; %s T0+%v", s.pod, since.Round(10*time.Millisecond))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// stop is the T0 of a pod.
type stop struct {
	pod string
	at  time.Time
}

// mustLoseNothing prints the account and fails the test for every request that
// was lost.
func mustLoseNothing(t *testing.T, stops []stop, ledgers ...*ledger) {
	t.Helper()
	for _, l := range ledgers {
		t.Log(l)
		if lost, sent := l.lost(); lost > 0 {
			t.Errorf("%s: %d of %d requests lost:\n%s", l.kind, lost, sent, l.explain(stops, 20))
		}
	}
}

// mustLoseSome is for a control: it prints the account and fails the test when
// no request was lost.
func mustLoseSome(t *testing.T, ledgers ...*ledger) {
	t.Helper()
	all := 0
	for _, l := range ledgers {
		t.Log(l)
		lost, _ := l.lost()
		all += lost
	}
	if all == 0 {
		t.Error("nothing is lost where requests have to be: the test is blind")
	}
}

// mustHaveDrained fails the test when clients never met a draining server:
// then the test proved nothing.
func mustHaveDrained(t *testing.T, ledgers ...*ledger) {
	t.Helper()
	for _, l := range ledgers {
		if l.seen() == 0 {
			t.Errorf("%s: no server ever sent a client away: the drain was not put to the test", l.kind)
		}
	}
}
