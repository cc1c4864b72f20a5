package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Version is the version of the contract. A worker that says nothing of a version in its
// ready speaks this one.
const Version = 1

// What a worker can say in its ready that it is able to do.
const (
	CanStacks = "stacks" // it answers dump, even during a query
	CanBytes  = "bytes"  // it takes queries with bytes beside the payload, and may answer with bytes
)

// Capabilities returns all that a worker may announce.
func Capabilities() []string { return []string{CanStacks, CanBytes} }

// MaxConcurrency bounds the queries that a worker may offer to have at a time.
const MaxConcurrency = 1000

// About is what a worker learns about a query beside its payload.
type About struct {
	TimeoutMs   int64  // the time until the deadline, in milliseconds; 0 when the query gives none
	Traceparent string // W3C Trace Context; "" for none
	Tracestate  string
	Metadata    map[string]string // of the caller
}

// Offer is what a worker says in its ready.
type Offer struct {
	Version      int      // 0 when it said none
	Capabilities []string // see Capabilities
	Concurrency  int      // how many queries it takes at a time; 0 when it said none, which is 1
}

// whole returns a whole number from least to most.
func whole[N int | int64](field string, raw []byte, least, most N) (N, error) {
	n, err := strconv.ParseFloat(string(raw), 64) // raw is valid JSON, so it has no other form of a number
	if err != nil || n < float64(least) || n > float64(most) || n != math.Trunc(n) {
		return 0, fmt.Errorf("%w: %s is %s, want a whole number from %d to %d", ErrField, field, Excerpt(raw), least, most)
	}
	return N(n), nil
}

// capabilities returns the names of what a worker is able to do.
func capabilities(raw []byte) ([]string, error) {
	var names []string
	if err := json.Unmarshal(raw, &names); err != nil || names == nil { // nil is null
		return nil, fmt.Errorf("%w: capabilities is %s, want a list of names", ErrField, Excerpt(raw))
	}
	for _, name := range names {
		if !slices.Contains(Capabilities(), name) {
			return nil, fmt.Errorf("%w: the capability %s is not known, want some of %q", ErrField, Excerpt([]byte(name)), Capabilities())
		}
	}
	return names, nil
}
