//go:build unix

package adopt

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// upstreamGRPC is a program before that is not in this repository.
const upstreamGRPC = "google.golang.org/grpc/examples/features/gracefulstop/server"

// Every program of this module compiles, and so does the one of grpc-go that it replaces.
func TestProgramsCompile(t *testing.T) {
	run(t, "go", "list", "-export", "./...", upstreamGRPC) // -export compiles, and links nothing
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
			addr := freeAddr(t)
			c := start(t, "./migrate/"+p+"/before", "http://"+addr, "-addr", addr)
			if p == "fx" {
				c.says(t, "RUNNING") // fx serves before it listens for signals
			}
			c.terminate(t)
			for c.status(t) != 0 { // until it no longer answers
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
				addr, health := freeAddr(t), freeAddr(t)
				c := start(t, "./migrate/"+p+"/"+kind, "http://"+health+"/readyz", "-health", health, "-addr", addr)
				c.stop(t)
				for { // readiness is down a moment before the server says goodbye
					status, goodbye, err := c.ask(t, "http://"+addr)
					if err != nil || status != http.StatusOK {
						t.Fatalf("in the window it answers %d, %v, want 200", status, err)
					}
					if goodbye {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				c.exit(t)
			})
		}
	}
}
