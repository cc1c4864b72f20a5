package host_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// threeServers is the cluster that newRig uses while TestOnThreeServers runs.
var threeServers *brokertest.Cluster

// TestOnThreeServers runs the most important tests on a cluster of three servers,
// with three replicas of everything. HOST_TEST_SERVERS=3 runs all tests on such a
// cluster.
func TestOnThreeServers(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the test takes most of a minute")
	}
	threeServers = brokertest.StartCluster(t, 3)
	t.Cleanup(func() { threeServers = nil })
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"H1 H3 H4 life", TestLife},
		{"H1 a failed creation leaves nothing", TestCreateFails},
		{"H1 two creations at once", TestCreateOnTwoHostsAtOnce},
		{"H1 a creation that was cut off", TestCreationCutOff},
		{"H2 H8 recovery", TestRecovery},
		{"H3 deletion", TestDeleteWhileHandling},
		{"H4 update while messages flow", TestUpdateWhileMessagesFlow},
		{"H5 code by URL", TestCodeByURL},
		{"H6 groups", TestGroups},
		{"H6 a stale holder", TestStaleHolder},
		{"H7 retries and dead letters", TestRetriesAndDeadLetters},
		{"H7 a letter that is too large", TestLetterThatIsTooLarge},
		{"H8 the probe", TestRecoveryProbe},
		{"H8 hosts share", TestHostsShare},
		{"H9 state takes effect once", TestStateTakesEffectOnce},
	} {
		t.Run(c.name, c.test)
	}
}
