package workflows

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}
