// Command after is the operator of docs/guides/migrating/controller-runtime.md as a unit of an App.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() { lifecycle.Main(run) }

func run() error {
	grace := 4 * time.Second // below UnitSlice, the time that an App leaves for its units
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Metrics:                 metricsserver.Options{BindAddress: ":8080"},
		HealthProbeBindAddress:  "0", // the App serves the planes
		LeaderElection:          true,
		LeaderElectionID:        "configmaps.example.com",
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(&reconciler{mgr.GetClient()}); err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{TerminationGrace: 30 * time.Second, DrainWait: lifecycle.WaitNever})
	if err != nil {
		return err
	}
	app.Go("manager", mgr.Start).
		Probe("cache", lifecycle.ProbeFunc(func(ctx context.Context) error {
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("not synced yet")
			}
			return nil
		}))
	return app.Run(context.Background())
}
