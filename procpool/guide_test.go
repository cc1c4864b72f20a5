//go:build unix

package procpool_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/child"
)

// Words is a worker in Go, as docs/guides/pool.md shows it.
func Words(ctx context.Context, q *child.Query) (any, error) {
	var ask struct{ Text string }
	if err := json.Unmarshal(q.Payload, &ask); err != nil {
		return nil, err
	}
	words := strings.Fields(ask.Text)
	for _, word := range words {
		if err := q.Send(strings.ToUpper(word)); err != nil {
			return nil, err
		}
	}
	return map[string]int{"words": len(words)}, ctx.Err()
}

// newModel is a pool of processes that each have the model in memory, as
// docs/guides/model.md shows it.
func newModel(python, program string) (*procpool.Pool, error) {
	return procpool.New(procpool.Config{
		Name:         "model",
		Command:      func() *exec.Cmd { return exec.Command(python, program) },
		MinWorkers:   2, // each loads the model when the App starts
		MaxWorkers:   2,
		MaxQueue:     100,
		StartTimeout: 2 * time.Minute, // a load takes 20 s, and more from a cold disk
		Recycle: procpool.Recycle{
			MaxQueries: 100_000,
			MaxRSS:     6 << 30,
		},
	})
}

// predict multiplies rows of two numbers by the model.
func predict(ctx context.Context, pool *procpool.Pool, rows [][2]float32) ([][2]float32, error) {
	ask, err := json.Marshal(map[string]any{"dtype": "<f4", "shape": []int{len(rows), 2}})
	if err != nil {
		return nil, err
	}
	data, err := binary.Append(nil, binary.LittleEndian, rows)
	if err != nil {
		return nil, err
	}
	_, answer, err := pool.DoBytes(ctx, ask, data, procpool.Idempotent())
	if err != nil {
		return nil, err
	}
	result := make([][2]float32, len(rows))
	_, err = binary.Decode(answer, binary.LittleEndian, result)
	return result, err
}

// The model that docs/guides/model.md shows answers, also while it is reloaded.
func TestModelOfTheGuide(t *testing.T) {
	python := pythonWithNumpy(t)
	program := filepath.Join(copyGuide(t, "testdata/guide/model.py", "sdk/python/lifecycle_worker.py"), "model.py")
	pool, err := newModel(python, program)
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Stop(context.Background()) })
	reloaded := make(chan error, 1)
	go func() {
		_, err := pool.Reload(within(t), nil)
		reloaded <- err
	}()
	for over := false; !over; {
		select {
		case err := <-reloaded:
			if err != nil {
				t.Error(err)
			}
			over = true
		default:
		}
		got, err := predict(within(t), pool, [][2]float32{{1, 0}, {1, 1}})
		if err != nil || !slices.Equal(got, [][2]float32{{1, 2}, {4, 6}}) {
			t.Fatalf("%v, %v", got, err)
		}
	}
}

// copyGuide puts files of the guide into one folder, as a reader does.
func copyGuide(t *testing.T, files ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// The workers that docs/guides/pool.md shows do what the page says, beside the one file of
// their language that the page tells the reader to copy.
func TestWorkersOfTheGuide(t *testing.T) {
	programs := []struct{ name, interpreter, worker, sdk string }{
		{name: "go"},
		{name: "python", interpreter: "python3", worker: "words.py", sdk: "sdk/python/lifecycle_worker.py"},
		{name: "node", interpreter: "node", worker: "words.mjs", sdk: "sdk/node/lifecycle-worker.mjs"},
		{name: "ruby", interpreter: "ruby", worker: "words.rb", sdk: "sdk/ruby/lifecycle_worker.rb"},
	}
	for _, program := range programs {
		t.Run(program.name, func(t *testing.T) {
			command := func() *exec.Cmd { return self("words") }
			if program.interpreter != "" {
				if _, err := exec.LookPath(program.interpreter); err != nil {
					t.Skip(err)
				}
				folder := copyGuide(t, "testdata/guide/"+program.worker, program.sdk)
				command = func() *exec.Cmd { return exec.Command(program.interpreter, filepath.Join(folder, program.worker)) }
			}
			pool := startPool(t, command, nil)
			q, err := pool.Submit(within(t), json.RawMessage(`{"text":"the cat sat"}`))
			if err != nil {
				t.Fatal(err)
			}
			var messages []string
			for message, err := range q.Messages() {
				if err != nil {
					t.Fatal(err)
				}
				messages = append(messages, string(message))
			}
			result, err := q.Result()
			if err != nil || !sameJSON(string(result), `{"words":3}`) || !slices.Equal(messages, []string{`"THE"`, `"CAT"`, `"SAT"`}) {
				t.Errorf("messages %q, result %s, %v", messages, result, err)
			}
		})
	}
}
