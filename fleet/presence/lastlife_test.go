package presence_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// lifeMain is the program of a child of TestTheNextLifeSaysHowTheLastOneEnded: a life of
// the process LIFE_ID. It says when it is ready, and then does what it reads.
func lifeMain() {
	id, file := os.Getenv("LIFE_ID"), os.Getenv("LIFE_FILE")
	if id == "" {
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	b, err := broker.Connect(context.Background(), broker.Config{URL: os.Getenv("LIFE_NATS"), Logger: brokertest.Quiet()})
	fail(err)
	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	fail(err)
	presence.Announce(app, b.JetStream(), presence.Config{ID: id, LastWords: file, Logger: brokertest.Quiet()})
	app.Go("told", func(context.Context) error {
		for {
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "missions."+id) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Println("ready")
		what, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if strings.TrimSpace(what) == "panic" {
			go dropTable()
			select {}
		}
		app.Stop(nil)
		return nil
	})
	_ = app.Run(context.Background())
	os.Exit(0)
}

func dropTable() { panic("no such table") }

// A life that ended without a word is told apart by the next one: a panic, with its place,
// from a kill. A life that said its end itself is not told again.
func TestTheNextLifeSaysHowTheLastOneEnded(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	file := filepath.Join(t.TempDir(), "words")
	f := open(t, b.JetStream(), presence.Config{Logger: brokertest.Quiet()})
	live := func(id string, end func(cmd *exec.Cmd, stdin io.Writer)) {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LIFE_ID="+id, "LIFE_FILE="+file, "LIFE_NATS="+b.ClientURL())
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
			t.Errorf("%s: %q %v", id, line, err)
		}
		// By then it has told the runtime where to write a panic.
		await(t, f, "missions."+id, "its announcement", func(presence.Process) bool { return true })
		end(cmd, stdin)
		_ = cmd.Wait()
	}
	live("one", func(_ *exec.Cmd, stdin io.Writer) { fmt.Fprintln(stdin, "panic") })
	live("two", func(cmd *exec.Cmd, _ io.Writer) { _ = cmd.Process.Kill() })
	live("three", func(_ *exec.Cmd, stdin io.Writer) { fmt.Fprintln(stdin, "end") })
	live("four", func(_ *exec.Cmd, stdin io.Writer) { fmt.Fprintln(stdin, "end") })
	var list []presence.Event
	brokertest.Await(t, "the ends", func() bool {
		list = events(t, f, presence.EventQuery{Kinds: []string{"lost", "exit"}})
		return len(list) >= 4
	})
	ends := map[string]presence.Event{}
	for _, e := range list {
		ends[e.Process] = e
	}
	if e := ends["missions.one"]; len(list) != 4 || e.Kind != "lost" || e.To != presence.EndPanicked || !strings.HasPrefix(e.Cause, "panic: no such table in ") || !strings.Contains(e.Cause, "dropTable (lastlife_test.go:") {
		t.Errorf("the first life ended with %+v of %d", e, len(list))
	}
	if e := ends["missions.two"]; e.Kind != "lost" || e.To != presence.EndKilled || !strings.Contains(e.Cause, "it did not panic") {
		t.Errorf("the second life ended with %+v", e)
	}
	if a, b := ends["missions.three"], ends["missions.four"]; a.Kind != "exit" || b.Kind != "exit" || a.To != presence.EndClean {
		t.Errorf("the others ended with %+v and %+v", a, b)
	}
	joined := events(t, f, presence.EventQuery{Kinds: []string{"joined"}, Process: "missions.three"})
	if len(joined) != 1 || !strings.HasPrefix(joined[0].Cause, "the life before was ended: it did not panic") {
		t.Errorf("the third life joined with %+v", joined)
	}
}

// Two processes with one file: the second one goes on without it, and says so.
func TestLastWordsOfOneProcessOnly(t *testing.T) {
	js := nats(t)
	file := filepath.Join(t.TempDir(), "words")
	f := open(t, js, presence.Config{Logger: brokertest.Quiet()})
	_, one, _ := start(t, js, presence.Config{ID: "one", LastWords: file}, nil)
	await(t, f, one, "the first", func(p presence.Process) bool { return p.Ready })
	_, two, _ := start(t, js, presence.Config{ID: "two", LastWords: file}, nil)
	await(t, f, two, "the second", func(p presence.Process) bool { return p.Ready })
	if list := events(t, f, presence.EventQuery{Kinds: []string{"lost"}}); len(list) != 0 {
		t.Errorf("a process that lives has ended: %+v", list)
	}
}
