//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
				folder := t.TempDir()
				for _, file := range []string{"testdata/guide/" + program.worker, program.sdk} {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), text, 0o600); err != nil {
						t.Fatal(err)
					}
				}
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
