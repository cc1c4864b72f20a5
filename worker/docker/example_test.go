package docker_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

// A supervisor keeps a container running. Without an engine the child fails, and the
// supervisor starts it again.
func Example() {
	cli, err := client.New(client.WithHost("unix:///nowhere/docker.sock")) // client.FromEnv, in a program
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = cli.Close() }()
	engine := docker.New(cli, docker.WithOwner("shop"), docker.WithReplace(), docker.WithShape(func(o *client.ContainerCreateOptions) {
		o.HostConfig.Memory = 256 << 20
		o.HostConfig.Binds = []string{"/srv/cache:/data"}
	}))
	tree := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff: worker.Backoff{Min: time.Hour, Max: time.Hour},
		Children: []worker.Spec{{Name: "cache", New: func(name string) (worker.Worker, error) {
			return worker.NewContainer(name, engine, worker.ContainerSpec{Name: "shop-cache", Image: "cache:1.4"},
				worker.WithContainerOutput(os.Stdout, os.Stderr)), nil
		}}},
	})
	failed := tree.Watch(10)
	defer failed.Close()
	if err := tree.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	for e := range failed.All(context.Background()) {
		if e.Name == "cache" {
			fmt.Println(e.From, "->", e.To)
		}
		if e.To == string(worker.StatusPending) {
			break
		}
	}
	_ = tree.Stop(context.Background())
	fmt.Println(tree.Status())
	// Output:
	// Created -> Starting
	// Starting -> Failed
	// Created -> Pending
	// Stopped
}
