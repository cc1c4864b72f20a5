package fsm_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pleme-io/lifecycle-go/fsm"
)

func TestSignalHappensOnceForEarlyAndLateReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		draining := new(fsm.Signal)
		if draining.HasSignaled() {
			t.Fatal("a new signal has happened")
		}
		var released atomic.Int32
		for range 5 {
			go func() {
				<-draining.Signaled()
				released.Add(1)
			}()
		}
		early := draining.Signaled()
		synctest.Wait()
		if n := released.Load(); n != 0 {
			t.Fatalf("%d readers were released before the signal", n)
		}
		if !draining.Signal() || draining.Signal() {
			t.Error("Signal must report true for the first call and false for the second")
		}
		synctest.Wait()
		if n := released.Load(); n != 5 || !draining.HasSignaled() {
			t.Errorf("%d of 5 readers released, signaled %v", n, draining.HasSignaled())
		}
		if draining.Signaled() != early {
			t.Error("Signaled returned another channel after the signal")
		}
		<-draining.Signaled()
	})
}

func TestSignalZeroValueIsReady(t *testing.T) {
	var s fsm.Signal
	if s.HasSignaled() {
		t.Fatal("a zero value has happened")
	}
	if !s.Signal() || s.Signal() {
		t.Error("only the first call must return true, even when no reader has asked for the channel")
	}
	<-s.Signaled()
	if !s.HasSignaled() {
		t.Error("HasSignaled must be true")
	}
}

func TestSignalHasOneFirstAmongMany(t *testing.T) {
	var s fsm.Signal
	var firsts atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if s.Signal() {
				firsts.Add(1)
			}
			<-s.Signaled()
		})
	}
	wg.Wait()
	if n := firsts.Load(); n != 1 {
		t.Errorf("%d calls were the first, want 1", n)
	}
}

func TestWakeHoldsOneToken(t *testing.T) {
	wake := fsm.NewWake()
	for range 3 {
		wake.Notify() // never blocks, although nothing reads yet
	}
	<-wake
	select {
	case <-wake:
		t.Error("three notifications before the reader looks must leave one token")
	default:
	}
	wake.Notify()
	<-wake
}
