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
const core = "^(TestLifeOfAMission|TestEveryUpdateOfManyWritersLandsOnce|TestCompleteHasNoWindow|TestRefusals|TestOwnWritesAreSeenAtOnce|" +
	"TestListFiltersAndPages|TestWatchTellsEveryWriteOnce|TestHistoryThatIsTooShortSaysSo|TestDeadlines|TestMigration|" +
	"TestServerThatGoesAwayAndComesBack|TestBucketRestoredFromABackup|TestBucketRestoredAndWrittenPastItsEnd)$"

// TestSuiteOnASeparateServer runs all of these tests on a server in a process of
// its own.
func TestSuiteOnASeparateServer(t *testing.T) {
	if brokertest.KindOfRun(t) == brokertest.InProcess {
		brokertest.Again(t, brokertest.Separate, ".", elsewhere, 30)
	}
}

// TestCoreOnACluster runs those of them where it matters most on three servers,
// each in a process of its own. "make chaos" runs all.
func TestCoreOnACluster(t *testing.T) {
	if brokertest.KindOfRun(t) == brokertest.InProcess {
		brokertest.Again(t, brokertest.Clustered, core, elsewhere, 13)
	}
}
