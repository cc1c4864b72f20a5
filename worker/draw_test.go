package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// picture is the content of a drawing: labels by node, and edges.
type picture struct {
	labels map[string]string
	edges  []string
}

var (
	mermaidNode = regexp.MustCompile(`^    (n\d+)\["([^"\[\]{}]*)"\]:::[a-z]+$`)
	mermaidEdge = regexp.MustCompile(`^    (n\d+) --> (n\d+)$`)
	mermaidCode = regexp.MustCompile(`#(\d+);`)
	dotNode     = regexp.MustCompile(`^\t(n\d+) \[label="((?:[^"\\]|\\.)*)" fillcolor="#[0-9a-f]+" color="#[0-9a-f]+"\]$`)
	dotEdge     = regexp.MustCompile(`^\t(n\d+) -> (n\d+)$`)
)

// parse reads a drawing line by line and fails for a line that it does not know.
func parse(t testing.TB, text string) picture {
	t.Helper()
	p := picture{labels: make(map[string]string)}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if i == 0 || line == "}" || strings.HasPrefix(line, "    classDef ") || strings.HasPrefix(line, "\tnode [") {
			continue
		}
		if m := mermaidNode.FindStringSubmatch(line); m != nil {
			label := strings.ReplaceAll(m[2], "<br/>", "\n")
			p.labels[m[1]] = mermaidCode.ReplaceAllStringFunc(label, func(code string) string {
				n, _ := strconv.Atoi(code[1 : len(code)-1])
				return string(rune(n))
			})
		} else if m := dotNode.FindStringSubmatch(line); m != nil {
			p.labels[m[1]] = regexp.MustCompile(`\\(.)`).ReplaceAllStringFunc(m[2], func(e string) string {
				if e == `\n` {
					return "\n"
				}
				return e[1:]
			})
		} else if m := mermaidEdge.FindStringSubmatch(line); m != nil {
			p.edges = append(p.edges, m[1]+">"+m[2])
		} else if m := dotEdge.FindStringSubmatch(line); m != nil {
			p.edges = append(p.edges, m[1]+">"+m[2])
		} else {
			t.Errorf("line %d does not belong into a drawing: %q", i, line)
		}
	}
	return p
}

func TestPictureOfALiveTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		end := make(chan error)
		nasty := `a"]-->x[("<b>&#35;\`
		s := supervise(t, worker.SupervisorConfig{Backoff: everySecond, Children: []worker.Spec{
			d.child(nasty, nil), d.child("b", end),
			{Name: "inner", New: func(name string) (worker.Worker, error) {
				return worker.NewSupervisor(name, worker.SupervisorConfig{Children: []worker.Spec{d.child("c", nil)}}), nil
			}},
		}})
		synctest.Wait()
		end <- errBoom
		synctest.Wait()
		state := s.State()
		for name, text := range map[string]string{"mermaid": state.Mermaid(), "dot": state.DOT()} {
			p := parse(t, text)
			want := map[string]string{
				"n0": "tree\nsupervisor\nRunning", "n1": nasty + "\nfunc\nRunning",
				"n2": "b\nchild\nPending\nbackoff after: boom\ndue " + time.Now().Add(time.Second).Format(time.TimeOnly),
				"n3": "inner\nsupervisor\nRunning", "n4": "c\nfunc\nRunning",
			}
			for id, label := range want {
				if p.labels[id] != label {
					t.Errorf("%s: %s is %q, want %q", name, id, p.labels[id], label)
				}
			}
			if got := fmt.Sprint(p.edges); got != "[n0>n1 n0>n2 n0>n3 n3>n4]" || len(p.labels) != 5 {
				t.Errorf("%s: edges %s, %d nodes", name, got, len(p.labels))
			}
		}
		stop(t, s)
		text, err := json.Marshal(s.State())
		if err != nil || !strings.Contains(string(text), `"status":"Stopped"`) {
			t.Errorf("as JSON: %s, %v", text, err)
		}
	})
}

func FuzzPictureKeepsItsShape(f *testing.F) {
	f.Add("name", "kind", "it broke")
	f.Add("\"]\n-->", "%%{init}%%", "\\\"\x00")
	f.Fuzz(func(t *testing.T, name, kind, text string) {
		s := worker.State{Name: name, Kind: kind, Status: worker.StatusRunning, Children: []worker.State{{Name: kind, Status: worker.StatusFailed, Error: text}}}
		for _, drawn := range []string{s.Mermaid(), s.DOT()} {
			if p := parse(t, drawn); len(p.labels) != 2 || len(p.edges) != 1 {
				t.Errorf("%d nodes, %d edges in %q", len(p.labels), len(p.edges), drawn)
			}
		}
	})
}

func FuzzHandoverSurvivesTheEnvironment(f *testing.F) {
	f.Add("session", 3, "boom", 1)
	f.Fuzz(func(t *testing.T, session string, restarts int, text string, code int) {
		h := worker.Handover{Session: session, Restarts: max(restarts, 0), Previous: &worker.Exit{Error: text, Code: code}}
		for _, v := range h.Environ() {
			name, value, _ := strings.Cut(v, "=")
			if strings.Contains(value, "\x00") || len(value) > 64<<10 && len(session) < 1<<10 {
				t.Errorf("the kernel does not take %q", v)
			}
			if strings.Contains(value, "\x00") {
				return
			}
			t.Setenv(name, value)
		}
		got, ok, err := worker.HandoverFromEnv()
		if err != nil || ok != (strings.ReplaceAll(session, "\x00", "") != "") {
			t.Fatalf("read back: %v, %v", ok, err)
		}
		if ok && (got.Restarts != h.Restarts || got.Previous.Code != code) {
			t.Errorf("%+v became %+v", h, got)
		}
	})
}

func FuzzHandoverFromEnv(f *testing.F) {
	f.Add("s", "1", `{"code":1}`)
	f.Add("s", "-1", `[]`)
	f.Fuzz(func(t *testing.T, session, restarts, previous string) {
		for name, value := range map[string]string{worker.EnvSession: session, worker.EnvRestarts: restarts, worker.EnvPrevious: previous} {
			if strings.Contains(value, "\x00") {
				t.Skip("an environment variable cannot hold it")
			}
			t.Setenv(name, value)
		}
		h, ok, err := worker.HandoverFromEnv()
		if ok && (err != nil || h.Restarts < 0) || err != nil && !strings.Contains(err.Error(), "LIFECYCLE_") {
			t.Errorf("%+v, %v, %v", h, ok, err)
		}
	})
}

func ExampleSupervisor() {
	ready := make(chan struct{})
	tries := 0
	s := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff: worker.Backoff{Min: time.Millisecond},
		Children: []worker.Spec{
			worker.FuncSpec("poller", func(ctx context.Context) error {
				if tries++; tries == 1 {
					return fmt.Errorf("the first try fails")
				}
				close(ready)
				<-ctx.Done()
				return nil
			}),
		},
	})
	_ = s.Start(context.Background())
	<-ready
	_ = s.Stop(context.Background())
	poller := s.State().Children[0]
	fmt.Println(s.Status(), poller.Status, poller.Restarts, poller.Exit.Status)
	// Output: Stopped Stopped 1 Stopped
}
