package workflow_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// elsewhere are the tests that do not use the servers that a run of tests has:
// they start their own, or need none.
const elsewhere = "^(Fuzz|Example|TestSuiteOnASeparateServer$|TestCoreOnACluster$|TestOneEntityIsLinearizable$|TestKillLosesNothing|TestRegisterRefuses$|TestOwnWriteThatWasDeletedMeanwhile$)"

// core is what differs most between one server and several: writes that race,
// what is read and watched, time, and records of before.
var core = map[string]struct {
	tests string
	n     int
}{
	"writes": {"^(TestLifeOfAMission|TestEveryUpdateOfManyWritersLandsOnce|TestCompleteHasNoWindow|TestRefusals|TestMigration)$", 5},
	"reads":  {"^(TestOwnWritesAreSeenAtOnce|TestListFiltersAndPages|TestWatchTellsEveryWriteOnce|TestHistoryThatIsTooShortSaysSo|TestDeadlines|TestServerThatGoesAwayAndComesBack)$", 6},
}

// TestSuiteOnASeparateServer runs all of these tests on a server in a process of
// its own.
func TestSuiteOnASeparateServer(t *testing.T) {
	if brokertest.KindOfRun(t) == brokertest.InProcess {
		t.Parallel()
		brokertest.Again(t, brokertest.Separate, ".", elsewhere, 30)
	}
}

// TestCoreOnACluster runs those of them where it matters most on three servers,
// each in a process of its own. "make chaos" runs all. Most of its time clusters
// elect their leaders, so they do that side by side.
func TestCoreOnACluster(t *testing.T) {
	if brokertest.KindOfRun(t) != brokertest.InProcess {
		return
	}
	for name, part := range core {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Again(t, brokertest.Clustered, part.tests, elsewhere, part.n)
		})
	}
}
