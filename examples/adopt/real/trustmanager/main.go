// Command trustmanager is cert-manager's trust-manager (github.com/cert-manager/trust-manager),
// an operator with a controller and a webhook, as a unit of an App. It has the flags of the
// project's own main, which is cmd/trust-manager.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cert-manager/trust-manager/cmd/trust-manager/app"
	"github.com/cert-manager/trust-manager/cmd/trust-manager/app/options"
	trustapi "github.com/cert-manager/trust-manager/pkg/apis/trust/v1alpha1"
	"github.com/cert-manager/trust-manager/pkg/bundle"
	"github.com/cert-manager/trust-manager/pkg/webhook"
	"github.com/pleme-io/lifecycle-go"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"
)

func main() {
	cmd := &cobra.Command{Use: "trust-manager", SilenceUsage: true}
	opts := options.New().Prepare(cmd)
	cmd.RunE = func(*cobra.Command, []string) error { return run(opts) }
	lifecycle.Main(cmd.Execute)
}

func run(opts *options.Options) error {
	if err := opts.Complete(); err != nil {
		return err
	}
	tlsOptions, err := app.GetTLSOptions(opts.TLSConfig)
	if err != nil {
		return err
	}
	log := opts.NewLogger()
	klog.SetLogger(log)
	ctrl.SetLogger(log)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), trustapi.AddToScheme(scheme)); err != nil {
		return err
	}
	grace := 4 * time.Second
	mgr, err := ctrl.NewManager(opts.RestConfig, ctrl.Options{
		Scheme:                        scheme,
		LeaderElection:                opts.LeaderElectionConfig.Enabled,
		LeaderElectionID:              "trust-manager-leader-election",
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &opts.LeaderElectionConfig.LeaseDuration,
		RenewDeadline:                 &opts.LeaderElectionConfig.RenewDeadline,
		HealthProbeBindAddress:        "0",
		GracefulShutdownTimeout:       &grace,
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{
			Port: opts.Webhook.Port, Host: opts.Webhook.Host, CertDir: opts.Webhook.CertDir, TLSOpts: tlsOptions}),
		Metrics: server.Options{BindAddress: fmt.Sprintf("0.0.0.0:%d", opts.MetricsPort)},
		Cache:   bundle.CacheOpts(opts.Bundle),
	})
	if err != nil {
		return err
	}
	if err := bundle.SetupWithManager(context.Background(), mgr, opts.Bundle); err != nil {
		return err
	}
	if err := webhook.SetupWebhookWithManager(mgr); err != nil {
		return err
	}
	service, err := lifecycle.New(lifecycle.Config{
		HealthAddr:       fmt.Sprintf("0.0.0.0:%d", opts.ReadyzPort),
		TerminationGrace: 30 * time.Second,
	})
	if err != nil {
		return err
	}
	service.Go("manager", mgr.Start).
		Probe("webhook", lifecycle.ProbeFunc(func(context.Context) error { return mgr.GetWebhookServer().StartedChecker()(nil) })).
		Probe("cache", lifecycle.ProbeFunc(func(ctx context.Context) error {
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("not synced yet")
			}
			return nil
		}))
	return service.Run(context.Background())
}
