// Package lifecycle runs a service from its first signal handler to its exit,
// so that Kubernetes can replace a pod without failing a request.
//
// An [App] is the one owner of a process's life. Register what the process
// consists of and call [App.Run] once:
//
//	app, err := lifecycle.New(cfg.Lifecycle, lifecycle.WithLogger(log))
//	if err != nil {
//		return err
//	}
//	app.Serve("http", &http.Server{Addr: ":8080", Handler: mux}).
//		Go("reconcile", reconcile).
//		Supervise("poller", poll, lifecycle.DefaultBackoff()).
//		Probe("db", lifecycle.ProbeFunc(db.PingContext)).
//		OnDrain("streams", hub).
//		OnShutdown("db", func(context.Context) error { return db.Close() })
//	return app.Run(context.Background())
//
// # The verbs
//
// A unit is work that runs as long as the App does. Choose by how it ends:
//
//   - [App.Go]: the function watches its context. Like errgroup, except that a
//     nil return is fine and the context is cancelled only after the drain.
//   - [App.Actor]: the function blocks and cannot watch a context; a second one
//     makes it return. As in oklog/run.
//   - [App.Supervise]: the function is run again when it fails, with backoff and a
//     budget. As in suture.
//   - [App.Serve] and [App.GRPC]: a server that lets its clients go before it does.
//   - [App.Lead]: the function runs while this process has a lease, in one process
//     at a time.
//   - [App.Add]: any worker.Worker.
//
// [App.OnDrain] lets go of what lives elsewhere, [App.OnShutdown] closes what
// lives here, [App.Probe] says whether the process can serve, [App.OnReload]
// answers SIGHUP.
//
// # The timeline of a stop
//
// A stop is requested by a signal, by a preStop hook ([App.Handler]), by the
// parent context, by a unit that fails, by an Actor that returns, or by
// [App.Stop]. It always goes the same way, except that an App which is still
// starting has nobody to drain for: what has started is taken down at once.
//
//	T0                      readiness down, liveness up whatever its checks say; Draining closes;
//	                        HTTP/1.x responses carry Connection: close; drainers start;
//	                        listeners stay open, every request is served
//	T0+GoAwayAfter          HTTP/2 gets GOAWAY; websockets and streams are told, spread out
//	T0+DrainInterval        the window is over: drainers and streams that are left are cut
//	  then                  listeners close once nothing arrived for AcceptQuiet
//	  then                  open connections are served until none is left, or Linger is over
//	  then                  requests in flight end, or are cut and counted
//	  then                  units are cancelled and awaited
//	  then                  shutdown hooks, last in first out
//	  then                  the health server closes, Run returns
//	…+ShutdownGrace         all of that is over
//	…+2s                    the watchdog: whatever still blocks, the process ends
//
// The window is for the cluster: until the endpoints controller, kube-proxy and
// every load balancer have noticed, requests go on arriving, and refusing them
// is what makes rolling updates fail. Everything after it has a slice of one
// budget, so that nothing that hangs can starve what comes behind it; what will
// not return is abandoned by name, with its stack, in the error and the report.
//
// # Errors
//
// Run returns nil for a clean stop. Otherwise the first part of its error is
// what caused the stop, and nothing that went wrong later is lost. [ExitCode]
// makes an exit status of it. A panic or a runtime.Goexit in a unit, hook,
// drainer or check is an error with the name and the stack. Two things no
// library can catch: a panic in a goroutine that a unit started by itself, and
// a fatal error of the runtime.
//
// # The parts
//
// [SignalContext], [Shutdown], [Registry] and [RunLoop] are useful alone.
package lifecycle
