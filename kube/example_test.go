package kube_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/kube"
)

// A function runs in one pod at a time. Outside a cluster the program runs too, and
// never leads.
func ExampleClient_Lease() {
	quiet := slog.New(slog.DiscardHandler) // the App says once why it does not lead
	cluster, err := kube.New(kube.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := cluster.Lease(kube.LeaseConfig{Name: "sync"})
	if err != nil {
		fmt.Println(err)
		return
	}
	app, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff}, lifecycle.WithLogger(quiet))
	if err != nil {
		fmt.Println(err)
		return
	}
	app.Lead("sync", lease, func(ctx context.Context) error {
		fmt.Println("leading")
		<-ctx.Done()
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println("ended:", app.Run(ctx))
	// Output: ended: <nil>
}

// Window and Self are options of the App.
func ExampleClient_Window() {
	quiet := slog.New(slog.DiscardHandler)
	cluster, err := kube.New(kube.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	app, err := lifecycle.New(
		lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainMax: 15 * time.Second},
		lifecycle.WithLogger(quiet),
		cluster.Window(kube.WindowConfig{Margin: 3 * time.Second}),
		cluster.Self(kube.SelfConfig{}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println("ended:", app.Run(ctx))
	// Output: ended: <nil>
}

// A drain of the node waits for the tasks that this process has taken. Outside a cluster
// Evictions does nothing.
func ExampleClient_Evictions() {
	quiet := slog.New(slog.DiscardHandler)
	cluster, err := kube.New(kube.Config{Logger: quiet})
	if err != nil {
		fmt.Println(err)
		return
	}
	var tasks sync.WaitGroup
	wait := func(ctx context.Context) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			tasks.Wait() // readiness is down, so no task comes
		}()
		select {
		case <-done:
		case <-ctx.Done(): // the eviction was withdrawn, or has waited for its longest time
		}
		return nil
	}
	app, err := lifecycle.New(
		lifecycle.Config{HealthAddr: lifecycle.HealthOff},
		lifecycle.WithLogger(quiet),
		cluster.Evictions(kube.EvictionConfig{Wait: wait, Longest: 30 * time.Minute}),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	fmt.Println("ended:", app.Run(ctx))
	// Output: ended: <nil>
}
