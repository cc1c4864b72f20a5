package workflow

import (
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// TestAViewIsAsOldAsBothClocksSay: a wall clock that is set back by an hour must not make
// a view look as if it were from the future, and a Fresh list of it be answered at once.
func TestAViewIsAsOldAsBothClocksSay(t *testing.T) {
	b := brokertest.Server(t, broker.Config{})
	v := newView(NewManager(b.JetStream(), brokertest.Quiet()), &bucket{js: b.JetStream(), nc: b.Conn()})
	if v.age() < time.Hour {
		t.Error("a view that has read nothing is fresh")
	}
	v.follow.reached(&bucketState{at: time.Now()})
	if at := v.asOf(); at.String() == at.Round(0).String() {
		t.Error("the moment has no monotonic reading")
	}
	back := time.Now().Round(0).Add(time.Hour) // by the wall clock alone
	v.follow.reached(&bucketState{at: back})
	if v.asOf().Before(time.Now()) || v.age() > 0 {
		t.Errorf("as of %v, %v ago", v.asOf(), v.age())
	}
	suspended := time.Now().Round(0).Add(-time.Hour)
	v.follow.reached(&bucketState{at: suspended})
	if v.age() < time.Hour {
		t.Errorf("as of %v, %v ago", v.asOf(), v.age())
	}
}
