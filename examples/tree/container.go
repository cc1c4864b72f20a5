package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/moby/moby/client"

	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/pleme-io/lifecycle-go/worker/docker"
)

// containers is a Docker engine, nil when there is none.
type containers struct {
	cli   *client.Client
	image string
}

// findEngine looks for an engine at DOCKER_HOST, or where one usually is. The
// tree does without a container when there is none or no image was named.
func findEngine(ctx context.Context, image string, out io.Writer) *containers {
	if image == "" {
		return nil
	}
	cli, err := client.New(client.FromEnv)
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		if _, err = cli.Ping(ctx, client.PingOptions{}); err == nil {
			return &containers{cli, image}
		}
		_ = cli.Close()
	}
	fmt.Fprintln(out, "--- no container:", err)
	return nil
}

// spec returns the branch of the tree with the container. Its name is fixed, so that
// one left behind by a crash is replaced.
func (c *containers) spec() worker.Spec {
	engine := docker.New(c.cli, docker.WithOwner("tree"), docker.WithReplace(), docker.WithShape(func(o *client.ContainerCreateOptions) {
		o.HostConfig.NetworkMode = "none"
		o.HostConfig.Memory = 64 << 20
	}))
	return worker.Spec{Name: "container", New: func(name string) (worker.Worker, error) {
		return worker.NewContainer(name, engine, worker.ContainerSpec{Name: "tree-example", Image: c.image}), nil
	}}
}

// kill ends the container behind the supervisor's back, as a person with a shell
// does.
func (c *containers) kill(ctx context.Context) error {
	_, err := c.cli.ContainerKill(ctx, "tree-example", client.ContainerKillOptions{Signal: "SIGKILL"})
	return err
}

func (c *containers) close() {
	if c != nil {
		_ = c.cli.Close()
	}
}
