//go:build unix && !linux

package procpool_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/worker"
)

func contained(testing.TB, worker.Limits) (opts []worker.ProcessOption, cgroup bool) {
	return nil, false
}
