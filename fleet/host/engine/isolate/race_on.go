//go:build race

package isolate

// raceFactor is how much memory the race detector takes for each byte of the program's,
// with the byte.
const raceFactor = 8
