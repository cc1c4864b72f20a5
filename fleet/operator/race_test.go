//go:build race

package operator_test

// watchersOfScreen is the number of watches while a browser shows 10 000 entities. The
// race detector makes each ten times as expensive. "make chaos" has 1000.
const watchersOfScreen = 100
