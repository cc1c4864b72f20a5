// Package pace makes the regular looks at a server rare, for a test in a synctest
// bubble. Time in a bubble passes as fast as its goroutines allow: with a look every two
// seconds a day would be forty thousand of them.
//
// Begin with [Pace.Of]. Package workflowtest sets the pace, and package workflow asks for it.
package pace

import (
	"sync"
	"time"
)

// rare has the connections whose looks are rare.
var rare sync.Map

// Pace is by how much to multiply the time between two looks.
type Pace int

// Of returns the time between two looks that usually is d.
func (p Pace) Of(d time.Duration) time.Duration { return time.Duration(p) * d }

// Slow makes the looks through a connection rare, for every caller that asks for its pace
// from now on. The returned function forgets the connection.
func Slow(conn any) (forget func()) {
	rare.Store(conn, nil)
	return func() { rare.Delete(conn) }
}

// Through returns the pace of a connection: 1, or many.
func Through(conn any) Pace {
	if _, slow := rare.Load(conn); slow {
		return 1000
	}
	return 1
}
