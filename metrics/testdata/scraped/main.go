// Command scraped has metrics and pushes none.
package main

import (
	"context"
	"os"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

func main() {
	app, err := lifecycle.New(lifecycle.Config{}, metrics.With(prometheus.NewRegistry()))
	if err != nil {
		panic(err)
	}
	os.Exit(lifecycle.ExitCode(app.Run(context.Background())))
}
