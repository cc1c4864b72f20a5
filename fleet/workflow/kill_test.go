package workflow_test

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// child runs in place of the tests when a test starts this binary as another
// process. It serves a durable broker, creates missions and prints each
// acknowledged one, until it is killed.
func child() {
	if dir := os.Getenv("WORKFLOW_TEST_RESTORE"); dir != "" {
		restoreSlowly(dir, os.Getenv("WORKFLOW_TEST_URL"))
	}
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

// restoreSlowly restores a backup, prints each part of it, and waits for a line before it
// goes on.
func restoreSlowly(dir, url string) {
	ctx := context.Background()
	b, err := broker.Connect(ctx, broker.Config{URL: url, Logger: brokertest.Quiet()})
	if err == nil {
		goOn := bufio.NewScanner(os.Stdin)
		err = workflow.RestoreBackup(ctx, b.JetStream(), dir, workflow.TellProgress(func(stream string, bytes int64) {
			fmt.Println(stream, bytes)
			goOn.Scan()
		}))
	}
	fmt.Println("end", err)
	os.Exit(0)
}

// TestRestoreThatIsKilled kills a restore after every fourth of its parts. No bucket is ever there
// without its journal and the progress of its hooks, and the next restore goes on, also behind one
// that was killed within a stream.
func TestRestoreThatIsKilled(t *testing.T) {
	ctx := testContext(t)
	b := hookServer(t)
	r := hooked(t, b, workflow.Hook{Do: func(context.Context, workflow.Reaction) error { return nil }})
	stop := r.hooks(t)
	note := func() (text string) { // it cannot be compressed, so a stream has several parts
		for range 150 {
			text += crand.Text()
		}
		return text
	}
	for i := range 300 {
		r.create(t, fmt.Sprint(i), "planning")
		must(t, r.missions.Transition(ctx, fmt.Sprint(i), "flying", "rule", note()))
	}
	r.copied(t)
	stop()
	dir := filepath.Join(t.TempDir(), "backup")
	must(t, workflow.Backup(ctx, b.JetStream(), "MISSIONS", dir))

	streams := []string{"KV_MISSIONS_HOOKS", "JOURNAL_MISSIONS", "KV_MISSIONS"}
	other := brokertest.NewSite(t).Connect(t, broker.Config{})
	js := other.JetStream()
	exists := func(stream string) bool {
		_, err := js.Stream(ctx, stream)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	left := map[string]int{} // how many kills left which streams
	for after, done := 1, false; !done; after += 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WORKFLOW_TEST_RESTORE="+dir, "WORKFLOW_TEST_URL="+other.ClientURL())
		out, err := cmd.StdoutPipe()
		must(t, err)
		in, err := cmd.StdinPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 1; lines.Scan(); n++ {
			if said, ended := strings.CutPrefix(lines.Text(), "end "); ended {
				if done = true; said != "<nil>" {
					t.Errorf("a restore that is not killed: %s", said)
				}
				break
			}
			if n == after {
				must(t, cmd.Process.Kill())
				break
			}
			_, err := in.Write([]byte("\n"))
			must(t, err)
		}
		_ = cmd.Wait()
		found := ""
		for _, stream := range streams {
			if exists(stream) {
				found += stream + " "
			}
		}
		left[found]++
		if exists(streams[2]) && (!exists(streams[0]) || !exists(streams[1])) {
			t.Errorf("killed after part %d it left %s", after, found)
		}
		must(t, workflow.RestoreBackup(ctx, js, dir))
		must(t, workflow.RestoreBackup(ctx, js, dir)) // all is there
		status, err := workflow.VerifyBackup(dir)
		must(t, err)
		for _, s := range status.Streams {
			stream, err := js.Stream(ctx, s.Name)
			must(t, err)
			if state := stream.CachedInfo().State; state.Msgs != s.Messages || state.LastSeq != s.Last {
				t.Errorf("killed after part %d: %s is restored with %+v, want %+v", after, s.Name, state, s)
			}
			must(t, js.DeleteStream(ctx, s.Name))
		}
	}
	t.Logf("what the kills left: %v", left)
	if len(left) < 2 {
		t.Errorf("the kills met too few steps: %v", left)
	}
}
