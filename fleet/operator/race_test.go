//go:build race

package operator_test

// watchersOfScreen is how many watch while a browser shows 10 000 entities: the
// race detector makes each of them ten times as dear. "make chaos" has 1000.
const watchersOfScreen = 100
