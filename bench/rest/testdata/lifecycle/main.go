// Command lifecycle is the same service as ../plain, with lifecycle.
package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"

	"github.com/pleme-io/lifecycle-go"
)

func main() { os.Exit(lifecycle.ExitCode(run())) }

func run() error {
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: "127.0.0.1:0"})
	if err != nil {
		slog.Error("failed", "error", err)
		return err
	}
	app.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello\n") })})
	return app.Run(context.Background())
}
