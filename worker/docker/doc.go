// Package docker runs the containers of a [worker.Container] on a Docker engine:
//
//	cli, err := client.New(client.FromEnv)
//	if err != nil {
//		return err
//	}
//	defer cli.Close()
//	engine := docker.New(cli, docker.WithShape(func(o *client.ContainerCreateOptions) {
//		o.HostConfig.Memory = 256 << 20
//		o.HostConfig.Binds = []string{"/srv/cache:/data"}
//	}))
//	app.Add(worker.NewContainer("cache", engine, worker.ContainerSpec{Image: "cache:1.4"},
//		worker.WithContainerOutput(os.Stdout, os.Stderr)))
//
// It uses github.com/moby/moby/client, the module that Docker's own
// command line is built with. Its predecessor, github.com/docker/docker/client, ends with
// version 28: since November 2025 only the new module gets fixes. It supports engines from
// API 1.40 (Docker 19.03) on; the client negotiates the version.
//
// An image that the engine does not have is an error, [ErrNoImage]. It pulls
// images only with [WithPull].
package docker
