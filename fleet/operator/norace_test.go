//go:build !race

package operator_test

// watchersOfScreen is the number of watches while a browser shows 10 000 entities.
const watchersOfScreen = 1000
