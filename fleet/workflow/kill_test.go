package workflow_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// child runs in place of the tests when a test starts this binary as another
// process. It serves a durable broker, creates missions and prints each
// acknowledged one, until it is killed.
func child() {
	dir := os.Getenv("WORKFLOW_TEST_STORE")
	if dir == "" {
		return
	}
	ctx := context.Background()
	b, err := broker.Connect(ctx, broker.Config{StoreDir: dir, Logger: brokertest.Quiet(), Buckets: buckets()})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	m := workflow.NewManager(b.JetStream(), brokertest.Quiet())
	if err := m.Register(survey, newMission, table); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	round := os.Getenv("WORKFLOW_TEST_ROUND")
	var mu sync.Mutex
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("r%s-w%d-%d", round, w, i)
				err := m.Create(ctx, &Mission{ID: id, State: "planning"})
				if err == nil {
					mu.Lock()
					fmt.Println("ok", id, "planning")
					mu.Unlock()
					err = m.Transition(ctx, survey, id, "flying", "rule", "")
				}
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Println("ok", id, "flying")
				mu.Unlock()
			}
		}()
	}
	select {}
}

func TestKillLosesNothingThatWasAcknowledged(t *testing.T) {
	rounds := 5
	if n, err := strconv.Atoi(os.Getenv("CHAOS_KILLS")); err == nil {
		rounds = n
	}
	dir := t.TempDir()
	acknowledged := make(map[string]string)
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WORKFLOW_TEST_STORE="+dir, "WORKFLOW_TEST_ROUND="+strconv.Itoa(round))
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		n, last := 0, 10+rand.N(60)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) != 3 || fields[0] != "ok" {
				t.Errorf("the child said: %s", lines.Text())
				break
			}
			acknowledged[fields[1]] = fields[2]
			if n++; n == last {
				must(t, cmd.Process.Kill())
			}
		}
		_ = cmd.Wait()
	}
	r := rigOn(t, brokertest.Embedded(t, broker.Config{StoreDir: dir, Buckets: buckets()}))
	ctx := testContext(t)
	for id, phase := range acknowledged {
		got, err := r.missions.Get(ctx, id)
		if err != nil {
			t.Errorf("%s was acknowledged: %v", id, err)
			continue
		}
		if got.State != phase && phase != "planning" { // the last write may have been stored without an answer
			t.Errorf("%s is %s, %s was acknowledged", id, got.State, phase)
		}
	}
	if len(acknowledged) < rounds*5 {
		t.Errorf("only %d were acknowledged", len(acknowledged))
	}
}
