package isolate_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/enginetest"
	"github.com/pleme-io/lifecycle-go/fleet/host/internal/attacks"
)

// Python reaches nothing of the host, of other workers, or of the machine.
func TestPythonReachesNothing(t *testing.T) {
	t.Setenv("HOST_SECRET", "s3cr3t")
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "private"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, []byte("s3cr3t"), 0o600); err != nil {
		t.Fatal(err)
	}
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	limits := tight
	limits.Time = time.Minute
	p, err := w.engines["python"].Load(t.Context(), attacks.Reach("message.id", file, socket, tcp.Addr().(*net.TCPAddr).Port), engine.Config{Worker: "bad", Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range attacks.Reaches {
		t.Run(a.Name, func(t *testing.T) {
			out, err := p.Handle(t.Context(), message(fmt.Sprint(i)), enginetest.NewState())
			if err != nil || len(out) != 1 || string(out[0].Data) != "denied" {
				t.Errorf("it got %.200q, %v", out, err)
			}
		})
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// plainState is a state for one goroutine: the race detector finds a second one.
type plainState map[string]string

func (s plainState) Get(_ context.Context, key string) ([]byte, bool, error) {
	v, ok := s[key]
	return []byte(v), ok, nil
}
func (s plainState) Put(_ context.Context, key string, v []byte) error {
	s[key] = string(v)
	return nil
}
func (s plainState) Delete(_ context.Context, key string) error { delete(s, key); return nil }

// Threads of a handler use the state one after the other, and never that of a message
// that was answered.
func TestStateIsOneMessages(t *testing.T) {
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	p, err := w.engines["python"].Load(t.Context(), []byte(`
import threading, time
late = threading.Event()
result = []
def straggle():
    late.wait()
    try:
        state.put("late", "x")
        result.append("written")
    except Exception as err:
        result.append(str(err))
def handle(message):
    if message.id == "1":
        threading.Thread(target=straggle, daemon=True).start()
        threads = [threading.Thread(target=lambda i=i: [state.put("%d" % i, str(n)) for n in range(50)]) for i in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        return
    late.set()
    while not result:
        time.sleep(0.01)
    return result[0]
`), engine.Config{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	state, next := plainState{}, plainState{}
	_, err = p.Handle(t.Context(), message("1"), state)
	if err != nil || len(state) != 4 || state["0"] != "49" || state["3"] != "49" {
		t.Errorf("state is %v, %v", state, err)
	}
	if _, err := p.Handle(t.Context(), message("2"), next); err != nil || state["late"] != "" {
		t.Errorf("state of the first message: %v, %v", state, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A child has no folder, so it can leave nothing behind. It starts also where the folder of
// temporary files is gone.
func TestChildrenLeaveNoFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	w := newWall(t)
	if w.engines["python"] == nil {
		t.Skip("there is no python3 here")
	}
	for range 2 {
		p, err := w.engines["python"].Load(t.Context(), []byte("def handle(message): pass"), engine.Config{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		if found, err := os.ReadDir(dir); len(found) > 0 {
			t.Errorf("in the folder of temporary files are %v, %v", found, err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil { // as a cleaner does
			t.Fatal(err)
		}
	}
}
