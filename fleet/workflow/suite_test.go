package workflow_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// elsewhere are the tests that do not use the shared servers of a run:
// they start their own, or need none.
const elsewhere = "^(Fuzz|Example|TestKillLosesNothing" +
	"|TestSuiteOnASeparateServer$" +
	"|TestCoreOnACluster$" +
	"|TestRegionReadsTheMirror$" +
	"|TestOneEntityIsLinearizable$" +
	"|TestStorageFaults$" +
	"|TestRegisterRefuses$" +
	"|TestAccountWithoutRights$" +
	"|TestRestoreUnderKillsReactsOnce$" +
	"|TestResumeUnderLoad$" +
	"|TestManyTimersInAMinute$" +
	"|TestOwnWriteThatWasDeletedMeanwhile$)"

// core are the tests that differ most between one server and several: racing writes,
// reads and watches, time, old records, hooks and timers.
var core = map[string]struct {
	tests string
	n     int
}{
	"writes": {"^(TestLifeOfAMission|TestEveryUpdateOfManyWritersLandsOnce|TestCompleteHasNoWindow|TestRefusals|TestMigration)$", 5},
	"reads":  {"^(TestOwnWritesAreSeenAtOnce|TestListFiltersAndPages|TestWatchTellsEveryWriteOnce|TestHistoryThatIsTooShortSaysSo|TestDeadlines|TestServerThatGoesAwayAndComesBack)$", 6},
	"later":  {"^(TestHistoryWithoutACap|TestTimersFireOnceInOrderAcrossProcesses|TestHookReactsToEveryTransitionInOrder|TestKeysOfManyWriters)$", 4},
}

// TestSuiteOnASeparateServer runs all of these tests on a server in a process of
// its own.
func TestSuiteOnASeparateServer(t *testing.T) {
	if testing.Short() {
		t.Skip("long: the suite again, on a server in its own process")
	}
	if brokertest.KindOfRun(t) == brokertest.InProcess {
		t.Parallel()
		brokertest.Again(t, brokertest.Separate, ".", elsewhere, 30)
	}
}

// TestCoreOnACluster runs the core tests on three servers,
// each in its own process. "make chaos" runs all tests there. Clusters spend most of
// the time electing leaders, so the tests run in parallel.
func TestCoreOnACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers: make test-long runs it")
	}
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
