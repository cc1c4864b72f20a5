package conventions

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

func idle(context.Context) error { return nil }

// refused returns the error of Run of an App with an invalid part.
func refused(register func(*lifecycle.App)) error {
	a, err := lifecycle.New(lifecycle.Config{}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	register(a)
	return a.Run(context.Background())
}

// nilOptions has the option types of the root module, by package and name, and
// the error for a nil option of each.
var nilOptions = []struct {
	typ  string
	give func() error
}{
	{"config.Option", func() error { _, err := config.Load[struct{}]("", nil); return err }},
	{"lifecycle.LoopOption", func() error {
		return lifecycle.RunLoop(context.Background(), time.Second, idle, nil)
	}},
	{"health.Option", func() error {
		return health.NewRegistry().RegisterReadiness("x", health.ProbeFunc(idle), nil)
	}},
	{"fsm.Option", func() error {
		_, err := fsm.New("door", "front", fsm.Table[string]{"open": {}}, "open", nil, nil)
		return err
	}},
	{"health.RegistryOption", func() error { return health.NewRegistry(nil).Err() }},
	{"procpool.Option", func() error {
		p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return exec.Command("true") }})
		if err != nil {
			return err
		}
		_, err = p.Submit(context.Background(), json.RawMessage("1"), nil)
		return err
	}},

	{"lifecycle.Option", func() error { _, err := lifecycle.New(lifecycle.Config{}, nil); return err }},
	{"lifecycle.UnitOption", func() error { return refused(func(a *lifecycle.App) { a.Go("y", idle, nil) }) }},
	{"lifecycle.ServeOption", func() error {
		return refused(func(a *lifecycle.App) { a.Serve("y", &http.Server{Addr: "127.0.0.1:0"}, nil) })
	}},
	{"worker.FuncOption", func() error { return worker.NewFunc("x", idle, nil).Start(context.Background()) }},
	{"worker.ProcessOption", func() error { return worker.NewProcess("x", exec.Command("true"), nil).Start(context.Background()) }},
	{"worker.ContainerOption", func() error {
		return worker.NewContainer("x", nil, worker.ContainerSpec{}, nil).Start(context.Background())
	}},
}

func TestNilOptions(t *testing.T) {
	known := make(map[string]bool)
	for _, c := range nilOptions {
		known[c.typ] = true
		t.Run(c.typ, func(t *testing.T) {
			err := c.give()
			if err == nil || !strings.Contains(err.Error(), "option 1 is nil") {
				t.Errorf("a nil option gives %v, want an error with its position", err)
			}
		})
	}
	for _, folder := range []string{".", "config", "worker", "procpool", "metrics", "lifecycletest", "fsm", "health"} {
		for _, typ := range optionTypes(t, filepath.Join("..", "..", folder)) {
			if !known[typ] {
				t.Errorf("%s has no row", typ)
			}
		}
	}
}

// optionTypes returns the exported types of a package that end in Option and are
// functions.
func optionTypes(t *testing.T, folder string) (types []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() || !strings.HasSuffix(spec.Name.Name, "Option") {
				return true
			}
			if _, ok := spec.Type.(*ast.FuncType); ok {
				types = append(types, fmt.Sprintf("%s.%s", file.Name.Name, spec.Name.Name))
			}
			return true
		})
	}
	return types
}
