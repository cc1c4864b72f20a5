//go:build race

package host_test

// raceDetector says that the race detector is on, with which a process takes several times as
// much memory.
const raceDetector = true
