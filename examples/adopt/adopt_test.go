//go:build unix

package adopt

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the table of docs/migrate/whole-programs.md")

// patience bounds the waits of a test. It measures nothing: a machine may be busy.
const patience = 2 * time.Minute

// upstream are the programs before that are not in this repository.
const (
	upstreamOperator = "sigs.k8s.io/controller-runtime/examples/builtins"
	upstreamGRPC     = "google.golang.org/grpc/examples/features/gracefulstop/server"
)

// Every program of this module compiles, and so do the two that it replaces.
func TestProgramsCompile(t *testing.T) {
	run(t, "go", "list", "-export", "./...", upstreamOperator, upstreamGRPC) // -export compiles, and links nothing
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// After SIGTERM a program before stops to serve and exits with 0. A program after is not
// ready, serves for the window with a goodbye, and exits with 0.
func TestProgramsStop(t *testing.T) {
	if testing.Short() {
		t.Skip("it links and runs eleven programs: make test-long runs it")
	}
	for _, p := range []string{"oklogrun", "errgroup", "signalcontext", "fx", "suture"} {
		t.Run(p+"/before", func(t *testing.T) {
			t.Parallel()
			c := start(t, "./migrate/"+p+"/before")
			c.stop(t)
			for c.get(t, c.addr) != nil { // until it no longer answers
				time.Sleep(10 * time.Millisecond)
			}
			c.exit(t)
		})
		after := []string{"after"}
		if p == "fx" {
			after = append(after, "keep")
		}
		for _, kind := range after {
			t.Run(p+"/"+kind, func(t *testing.T) {
				t.Parallel()
				c := start(t, "./migrate/"+p+"/"+kind, "-health", freeAddr(t))
				c.stop(t)
				for { // the signal is on its way
					res := c.get(t, c.health+"/readyz")
					if res == nil {
						t.Fatal("the health server is gone")
					}
					if res.StatusCode == http.StatusServiceUnavailable {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				for { // readiness is down a moment before the server says goodbye
					res := c.get(t, c.addr)
					if res == nil || res.StatusCode != http.StatusOK {
						t.Fatalf("in the window it answers %+v, want 200", res)
					}
					if res.Close {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				c.exit(t)
			})
		}
	}
}

// program is a running program.
type program struct {
	cmd          *exec.Cmd
	addr, health string // URLs
	client       *http.Client
}

func start(t *testing.T, folder string, args ...string) *program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	run(t, "go", "build", "-o", binary, folder)
	addr := freeAddr(t)
	c := &program{cmd: exec.Command(binary, append(args, "-addr", addr)...), addr: "http://" + addr,
		client: &http.Client{Timeout: patience, Transport: new(http.Transport)}}
	if len(args) == 2 {
		c.health = "http://" + args[1]
	}
	var output bytes.Buffer
	c.cmd.Stdout, c.cmd.Stderr = &output, &output
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		c.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("it wrote:\n%s", output.String())
		}
	})
	for wait := time.Now().Add(patience); c.get(t, c.addr) == nil || c.health != "" && !c.ready(t); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(wait) {
			t.Fatal("it does not serve")
		}
	}
	return c
}

func (c *program) ready(t *testing.T) bool {
	res := c.get(t, c.health+"/readyz")
	return res != nil && res.StatusCode == http.StatusOK
}

// get makes a request on a new connection. nil means that there was no answer.
func (c *program) get(t *testing.T, url string) *http.Response {
	t.Helper()
	c.client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res
}

func (c *program) stop(t *testing.T) {
	t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// exit waits for the end, which must be clean.
func (c *program) exit(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("it ends with %v, want the status 0", err)
	}
}

// freeAddr returns an address that was free a moment ago. Its port is none that the
// system gives to clients.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 1000 {
		if ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+rand.N(20_000))); err == nil {
			ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

var linesOfPrograms = regexp.MustCompile(`(?s)(<!-- lines -->\n)(.*?)(<!-- /lines -->)`)

// The table of docs/migrate/whole-programs.md has the lines of the programs as they are.
// -update writes it.
func TestWholeProgramsAreCounted(t *testing.T) {
	page := filepath.Join("..", "..", "docs", "migrate", "whole-programs.md")
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| program | before | after |\n| --- | --- | --- |\n")
	for _, p := range []struct{ name, before, after string }{
		{"operator", run(t, "go", "list", "-f", "{{.Dir}}", upstreamOperator), "operator/after"},
		{"gRPC server", run(t, "go", "list", "-f", "{{.Dir}}", upstreamGRPC), "grpc/after"},
		{"HTTP service", "httpnats/before", "httpnats/after"},
	} {
		fmt.Fprintf(&table, "| %s | %d | %d |\n", p.name, mainLines(t, p.before), mainLines(t, p.after))
	}
	if !linesOfPrograms.Match(got) {
		t.Fatalf("%s has no table of lines", page)
	}
	want := linesOfPrograms.ReplaceAll(got, []byte("${1}"+table.String()+"${3}"))
	switch {
	case bytes.Equal(got, want):
	case *update:
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s has another table than this: run \"make docs\"\n%s", page, table.String())
	}
}

// mainLines counts the lines of main and run in a folder's main.go, without empty ones
// and comments.
func mainLines(t *testing.T, folder string) (n int) {
	t.Helper()
	file := filepath.Join(folder, "main.go")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "main" && f.Name.Name != "run" {
			continue
		}
		for _, line := range lines[fset.Position(f.Pos()).Line-1 : fset.Position(f.End()).Line] {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
	}
	return n
}
