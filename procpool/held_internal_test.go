package procpool

import "testing"

// TestHeldBytesAreBounded checks that a query holds messages of MaxAnswer bytes, or one that is
// larger, until they are read.
func TestHeldBytesAreBounded(t *testing.T) {
	q := &Query{pool: &Pool{cfg: Config{MaxAnswer: 100}}}
	if q.hold(150) != nil {
		t.Fatal("the first message has no room")
	}
	full := q.hold(1)
	if full == nil {
		t.Fatal("there is room for a second message")
	}
	q.drop(150)
	select {
	case <-full:
	default:
		t.Error("who waits does not learn that there is room")
	}
	if q.hold(60) != nil || q.hold(40) != nil || q.hold(1) == nil {
		t.Error("there is not room for exactly 100 bytes")
	}
}
