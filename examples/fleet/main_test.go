package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	host.EngineMain(languages()...)
	for _, arg := range os.Args[1:] {
		if arg == "-role" { // this is a process of the fleet
			main()
		}
	}
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// The command serves a dashboard with three more processes, active missions
// and workers, and stops all of it on request.
func TestFleet(t *testing.T) {
	addr := brokertest.FreeAddr(t)
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0], "-role", "operator", "-addr", addr, "-dir", t.TempDir())
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ended := false
	defer func() {
		if !ended {
			cmd.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Log(out.String())
		}
	}()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	get := func(path string) string {
		resp, err := client.Get("http://" + addr + path)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return string(text)
	}
	for what, is := range map[string]func() bool{
		"four processes, all ready": func() bool {
			text := get("/processes")
			return strings.Count(text, `"id":`) == 4 && strings.Count(text, `"ready":true`) == 4
		},
		"missions flying": func() bool { return strings.Contains(get("/workflows/drone-survey?phase=flying"), `"id":`) },
		"workers":         func() bool { return strings.Contains(get("/workers"), "check-orders") },
		"the dashboard":   func() bool { return strings.Contains(get("/ui/"), "missions-1") },
		"a dead letter":   func() bool { return strings.Contains(get("/workers/check-orders/deadletters"), "too large") },
	} {
		for end := time.Now().Add(90 * time.Second); !is(); time.Sleep(100 * time.Millisecond) {
			select {
			case err := <-done:
				ended = true
				t.Fatalf("it ended while waiting for %s: %v", what, err)
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("never %s; the workers are %s", what, get("/workers"))
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		ended = true
		if err != nil {
			t.Errorf("it ends with %v", err)
		}
	case <-ctx.Done():
		t.Fatal("it does not end")
	}
}
