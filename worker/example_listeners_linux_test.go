package worker_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A server in Python that is replaced without a gap when RestartChild is called.
func ExampleWithListeners() {
	ln, err := net.Listen("tcp", "127.0.0.1:8080") // with an App: app.Listen
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	ready := func(ctx context.Context, p *worker.Process) error {
		// DialContext, because the instance before accepts on the same socket.
		client := http.Client{Transport: &http.Transport{DialContext: p.DialContext, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080/healthz", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthz: %s", resp.Status)
		}
		return nil
	}
	command := func() *exec.Cmd { return exec.Command("uvicorn", "--fd", "3", "app:app") }
	tree := worker.NewSupervisor("web", worker.SupervisorConfig{Children: []worker.Spec{
		worker.CommandSpec("uvicorn", command, worker.WithListeners(ln), worker.WithReady(ready)),
	}})
	if err := tree.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tree.Stop(context.Background()) }()
	// The next release is installed:
	if err := tree.RestartChild(context.Background(), "uvicorn"); err != nil {
		fmt.Println(err, "- the instance before serves on")
	}
}
