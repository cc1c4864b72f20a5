// Command leader runs a job in one pod at a time, and asks Kubernetes for what only it
// knows: who holds the Lease, whether the cluster has noticed a stop, and whether the
// pod's manifest fits the configuration. manifest.yaml has its Deployment and the
// permissions that it needs.
//
//	kubectl apply -f examples/leader/manifest.yaml
//
// Outside a cluster it runs too: it serves, never leads, and says so in the log.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/kube"
)

func main() { os.Exit(lifecycle.ExitCode(run())) }

func run() error {
	addr, health := flag.String("addr", ":8080", "serve HTTP on this address"), flag.String("health", ":8081", "address of the health server")
	flag.Parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	slog.SetDefault(log)
	cluster, err := kube.InCluster()
	if err != nil {
		log.Error("cannot start", "error", err)
		return err
	}
	lease, err := cluster.Lease(kube.LeaseConfig{Name: "leader"})
	if err != nil {
		log.Error("cannot start", "error", err)
		return err
	}
	app, err := lifecycle.New(
		lifecycle.Config{Name: "leader", HealthAddr: *health, DrainMax: 8 * time.Second},
		cluster.Window(kube.WindowConfig{}),
		cluster.Self(kube.SelfConfig{}),
	)
	if err != nil {
		log.Error("cannot start", "error", err)
		return err
	}
	srv := &http.Server{
		Addr: *addr, ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			token, leads := lease.Token()
			_, _ = fmt.Fprintf(w, "this is %s, leading: %v (term %d)\n", cluster.Pod(), leads, token)
		}),
	}
	app.Serve("http", srv).
		Lead("job", lease, func(ctx context.Context) error {
			return lifecycle.RunLoop(ctx, 10*time.Second, func(context.Context) error {
				token, _ := lease.Token() // a store that refuses smaller ones is safe from a paused pod
				log.Info("working", "term", token)
				return nil
			}, lifecycle.WithImmediateTick())
		})
	return app.Run(context.Background())
}
