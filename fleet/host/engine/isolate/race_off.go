//go:build !race

package isolate

// raceFactor is 1 without the race detector.
const raceFactor = 1
