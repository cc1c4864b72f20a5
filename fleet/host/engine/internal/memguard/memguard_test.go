package memguard

import (
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOnlyTheCallThatGrowsIsEnded(t *testing.T) {
	var g Guard
	small, large := make(chan struct{}), make(chan struct{})
	a := g.Watch(16<<20, func() { close(small) })
	b := g.Watch(8<<30, func() { close(large) })
	var held [][]byte
	deadline := time.After(time.Minute)
	for ended := false; !ended; {
		held = append(held, make([]byte, 1<<20))
		select {
		case <-small:
			ended = true
		case <-deadline:
			t.Fatal("the guard did not end the call")
		default:
			if len(held) > 512 {
				held = held[256:]
			}
			time.Sleep(time.Millisecond) // the guard uses the machine's clock
		}
	}
	runtime.KeepAlive(held)
	if !a.Done() || b.Done() {
		t.Error("the guard ended the wrong call")
	}
	select {
	case <-large:
		t.Error("a call within its limit was ended")
	default:
	}
}

func TestGarbageDoesNotCount(t *testing.T) {
	var g Guard
	c := g.Watch(64<<20, func() {})
	for range 256 {
		sink = make([]byte, 1<<20)
	}
	if c.Done() {
		t.Error("the call was ended for garbage")
	}
}

var sink []byte
