//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
	"go.uber.org/goleak"
)

// asChild makes the test binary act as the program.
const asChild = "TEST_IS_ORDERS"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// orders runs the program to its end.
func orders(t *testing.T, args ...string) (output string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asChild+"=1")
	out, _ := cmd.CombinedOutput() // the status says how it ended
	return string(out), cmd.ProcessState.ExitCode()
}

// A program that cannot start says why in its last line.
func TestOrdersSaysWhyItCannotStart(t *testing.T) {
	for name, c := range map[string]struct {
		arg    string
		status int
		want   string
	}{
		"an unusable store": {"-db=" + filepath.Join(t.TempDir(), "no", "such", "folder.db"), 1, "unable to open database file"},
		"a bad config":      {"-lifecycle.drain-interval=5", 78, "want a duration with its unit"},
		"an unknown flag":   {"-database=x", 78, "there is no such flag"},
	} {
		t.Run(name, func(t *testing.T) {
			out, status := orders(t, c.arg)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			last := lines[len(lines)-1]
			if status != c.status || !strings.Contains(last, c.want) || !strings.Contains(last, fmt.Sprint("exit_status=", c.status)) {
				t.Errorf("status %d, and the last line is %q, want %d and %q in it", status, last, c.status, c.want)
			}
		})
	}
}

func TestOrdersHelps(t *testing.T) {
	out, status := orders(t, "-h")
	if status != 0 || !strings.Contains(out, "serve HTTP on this address") || strings.Contains(out, "failed") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// Every order that was answered is in the database, also orders that came in the drain window.
func TestOrdersLosesNone(t *testing.T) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "orders.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("create table orders (id text primary key)"); err != nil {
		t.Fatal(err)
	}
	app := lifecycletest.New(t, lifecycle.Config{DrainInterval: time.Second})
	app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: routes(db)})
	app.Start()
	load := app.Load("http", "POST /orders/{n}")
	app.Signal(syscall.SIGTERM)
	app.WantClean()
	load.WantNoneLost()
	var stored int
	if err := db.QueryRow("select count(*) from orders").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if sent, _ := load.Wait(); stored != sent {
		t.Errorf("%d orders are stored, and %d were answered", stored, sent)
	}
}
