// Command after is an operator with a controller and two webhooks as a unit of an App. It has
// the parts of controller-runtime's own example (examples/builtins), whose main it replaces.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/pleme-io/lifecycle-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

func main() {
	ctrl.SetLogger(zap.New())
	lifecycle.Main(run)
}

func run() error {
	kubeconfig, err := config.GetConfig()
	if err != nil {
		return err
	}
	grace := 4 * time.Second
	mgr, err := manager.New(kubeconfig, manager.Options{HealthProbeBindAddress: "0", GracefulShutdownTimeout: &grace})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&appsv1.ReplicaSet{}).Owns(&corev1.Pod{}).Complete(&labeller{mgr.GetClient()}); err != nil {
		return err
	}
	if err := ctrl.NewWebhookManagedBy(mgr, &corev1.Pod{}).WithDefaulter(mark{}).WithValidator(mark{}).Complete(); err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{TerminationGrace: 30 * time.Second})
	if err != nil {
		return err
	}
	app.Go("manager", mgr.Start).
		Probe("webhook", lifecycle.ProbeFunc(func(context.Context) error { return mgr.GetWebhookServer().StartedChecker()(nil) })).
		Probe("cache", lifecycle.ProbeFunc(func(ctx context.Context) error {
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("not synced yet")
			}
			return nil
		}))
	return app.Run(context.Background())
}
