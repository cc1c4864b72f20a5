package conventions

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sound returns a module that keeps every convention. Each test breaks one.
func sound() (map[string]string, Module) {
	files := map[string]string{
		"go.mod":             "module example.com/house\n\ngo 1.26\n\nrequire (\n\texample.com/sync v0.0.0\n\texample.com/helper v0.0.0\n)\n\nreplace example.com/sync => ./_sync\n\nreplace example.com/helper => ./_helper\n",
		"house.go":           "// Package house is the root.\npackage house\n\nimport (\n\t_ \"context\"\n\n\t_ \"example.com/house/internal/a\"\n\t_ \"example.com/sync/errgroup\"\n)\n",
		"house_test.go":      "package house\n\nimport (\n\t\"testing\"\n\n\t\"example.com/helper\"\n\t\"go.uber.org/goleak\"\n)\n\nvar _ = helper.X\n\nfunc TestMain(m *testing.M) { goleak.VerifyTestMain(m) }\n",
		"internal/a/a.go":    "// Package a is below internal.\npackage a\n",
		"cmd/tool/main.go":   "// Command tool is a program.\npackage main\n\nfunc main() {}\n",
		"testdata/broken.go": "not Go at all",
		"_sync/go.mod":       "module example.com/sync\n\ngo 1.26\n", "_sync/errgroup/e.go": "package errgroup\n",
		"_helper/go.mod": "module example.com/helper\n\ngo 1.26\n", "_helper/h.go": "package helper\n\nconst X = 1\n",
	}
	return files, Module{
		Rooms: []Room{
			{Path: ".", Imports: []string{"example.com/sync", "./internal/..."}},
			{Path: "internal/..."},
			{Path: "cmd/..."},
		},
	}
}

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestEveryBrokenConventionIsNamed(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(files map[string]string, m *Module)
		want  []string // each a part of a different fault
	}{
		{"nothing is wrong", func(map[string]string, *Module) {}, nil},
		{"an import of another room", func(f map[string]string, m *Module) {
			f["internal/a/a.go"] = "// Package a is below internal.\npackage a\n\nimport _ \"example.com/sync/errgroup\"\n"
		}, []string{`example.com/house/internal/a imports example.com/sync/errgroup: beyond the standard library, "internal/..." may import only []`,
			"the build of example.com/house/internal/a has example.com/sync in it"}},
		{"the same on another platform only", func(f map[string]string, m *Module) {
			f["internal/a/a_windows.go"] = "package a\n\nimport _ \"example.com/helper\"\n"
		}, []string{
			"example.com/house/internal/a imports example.com/helper",
			"the build of example.com/house/internal/a has example.com/helper in it",
			"the build of example.com/house has example.com/helper in it",
		}},
		{"a package without a row", func(f map[string]string, m *Module) {
			m.Rooms = m.Rooms[:2]
		}, []string{`package example.com/house/cmd/tool is in no room: add a row for "cmd/tool"`}},
		{"a module drawn in by an allowed one", func(f map[string]string, m *Module) {
			f["_sync/errgroup/e.go"] = "package errgroup\n\nimport _ \"example.com/helper\"\n"
		}, []string{"the build of example.com/house has example.com/helper in it, which its room does not name: example.com/house -> example.com/sync/errgroup -> example.com/helper"}},
		{"the same, named", func(f map[string]string, m *Module) {
			f["_sync/errgroup/e.go"] = "package errgroup\n\nimport _ \"example.com/helper\"\n"
			m.Rooms[0].Brings = []string{"example.com/helper"}
		}, nil},
		{"the same, forbidden", func(f map[string]string, m *Module) {
			f["_sync/errgroup/e.go"] = "package errgroup\n\nimport _ \"example.com/helper\"\n"
			m.Rooms[0].Brings, m.Rooms[0].Never = []string{"..."}, []string{"example.com/helper"}
		}, []string{"the build of example.com/house must never have example.com/helper in it"}},
		{"a test helper outside tests", func(f map[string]string, m *Module) {
			f["house.go"] = "// Package house is the root.\npackage house\n\nimport _ \"example.com/helper\"\n"
		}, []string{"example.com/house imports example.com/helper", "the build of example.com/house has example.com/helper in it"}},
		{"no package doc", func(f map[string]string, m *Module) {
			f["internal/a/a.go"] = "package a\n"
		}, []string{"package example.com/house/internal/a has no doc comment"}},
		{"a package doc of another package", func(f map[string]string, m *Module) {
			f["internal/a/a.go"] = "// Package b is below internal.\npackage a\n"
		}, []string{`must begin with "Package a "`}},
		{"tests without a leak check", func(f map[string]string, m *Module) {
			f["internal/a/a_test.go"] = "package a\n\nimport \"testing\"\n\nfunc TestMain(m *testing.M) { m.Run() }\n"
		}, []string{"package example.com/house/internal/a has tests and no TestMain that calls goleak"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files, m := sound()
			tt.spoil(files, &m)
			got, err := inspect("example.com/house", write(t, files), m)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("found %d faults, want %d:\n%s", len(got), len(tt.want), strings.Join(got, "\n"))
			}
			for _, want := range tt.want {
				if !slices.ContainsFunc(got, func(g string) bool { return strings.Contains(g, want) }) {
					t.Errorf("no fault says %q; found:\n%s", want, strings.Join(got, "\n"))
				}
			}
		})
	}
}

func TestUnreadableModulesAreErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(map[string]string)
		want  string
	}{
		"no go.mod":        {func(f map[string]string) { delete(f, "go.mod") }, "go.mod"},
		"a broken go.mod":  {func(f map[string]string) { f["go.mod"] = "modul x" }, "go mod edit -json"},
		"a broken file":    {func(f map[string]string) { f["house.go"] = "package" }, "go list of example.com/house in"},
		"a missing module": {func(f map[string]string) { f["go.mod"] = "module example.com/house\n\ngo 1.26\n" }, "example.com/sync/errgroup"},
		"no packages": {func(f map[string]string) {
			delete(f, "house.go")
			delete(f, "house_test.go")
			delete(f, "internal/a/a.go")
			delete(f, "cmd/tool/main.go")
		}, "no packages"},
	} {
		t.Run(name, func(t *testing.T) {
			files, m := sound()
			tt.spoil(files)
			_, err := inspect("example.com/house", write(t, files), m)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %v, want one that says %q", err, tt.want)
			}
		})
	}
}
