// Package lifecycle runs a service from its first signal handler to its exit,
// so that Kubernetes can replace a pod without failing a request.
//
// An [App] owns the life of a process. Register the parts of the process and call
// [App.Run] once:
//
//	func main() { lifecycle.Main(run) }
//
//	func run() error {
//		app, err := lifecycle.New(cfg.Lifecycle, lifecycle.WithLogger(log))
//		if err != nil {
//			return err
//		}
//		app.Serve("http", &http.Server{Addr: ":8080", Handler: mux}).
//			Go("reconcile", reconcile).
//			Supervise("poller", poll, lifecycle.DefaultBackoff()).
//			Probe("db", lifecycle.ProbeFunc(db.PingContext)).
//			OnDrain("streams", hub).
//			OnShutdown("db", func(context.Context) error { return db.Close() })
//		return app.Run(context.Background())
//	}
//
// # The verbs
//
// A unit is work that runs as long as the App does. Choose by how it ends:
//
//   - [App.Go]: the function watches its context. Like errgroup, except that a
//     nil return is fine and the context is cancelled only after the drain.
//   - [App.Job]: the function is done at some point, and the process with it.
//   - [App.Actor]: the function blocks and cannot watch a context; a second
//     function makes it return. As in oklog/run.
//   - [App.Supervise]: the App runs the function again when it fails, with backoff
//     and a budget. As in suture.
//   - [App.Serve] and [App.GRPC]: a server that says goodbye to its clients before
//     it stops.
//   - [App.Lead]: the function runs while this process has a lease, in one process
//     at a time.
//   - [App.Add]: any worker.Worker.
//
// [App.OnDrain] releases resources that a remote peer holds for this process,
// [App.OnShutdown] closes resources of the process itself, [App.Probe] says whether
// the process can serve, and [App.OnReload] answers SIGHUP.
//
// Make the App first, and register the hook of a resource as soon as it is open. A main
// that fails further on calls [App.Stop] with its error and returns the result of Run,
// which then starts nothing and runs the hooks.
//
// # The timeline of a stop
//
// A stop begins with a signal, a preStop hook ([App.Handler]), the end of the
// parent context, a unit that fails, an Actor that returns, or [App.Stop]. Its steps
// are always the same. There is one exception: an App that is still starting has no
// clients yet, so it runs the drainers of the parts that have started, without the wait
// of the window, and takes these parts down.
//
//	T0                      readiness down, liveness up even if its checks fail; Draining closes;
//	                        HTTP/1.x responses carry Connection: close; drainers start;
//	                        listeners stay open, the App serves every request
//	T0+GoAwayAfter          websockets and streams are told, one after the other
//	T0+DrainInterval        the window is over: HTTP/2 gets GOAWAY; the App cuts drainers and
//	                        streams that still run
//	  then                  listeners close after AcceptQuiet without a new connection
//	  then                  the App serves open connections until none is left, or Linger is over
//	  then                  requests in flight end, or the App cuts and counts them
//	  then                  the App cancels the units and waits for them
//	  then                  shutdown hooks, last in first out
//	  then                  the health server closes, Run returns
//	…+ShutdownGrace         all of that is over
//	…+2s                    the watchdog ends a process that is still blocked
//
// The window is for the cluster. Requests arrive until the endpoints controller,
// kube-proxy and every load balancer have noticed the stop; a process that refuses
// them makes rolling updates fail. Each step after the window has a slice of one
// budget, so that a step that hangs cannot use up the time of the next. The App
// abandons a part that does not return: the error and the report name it, with its
// stack.
//
// # Errors
//
// Run returns nil for a clean stop. Otherwise the first part of its error is the
// cause of the stop, and the later errors are joined behind it. [ExitCode] turns the
// error into an exit status; [Main] exits with it and says why in the last line. A panic or a runtime.Goexit in a unit, hook, drainer or
// check is an error with the name and the stack. No library can catch a panic in a
// goroutine that a unit started by itself, or a fatal error of the runtime.
//
// # The parts
//
// [SignalContext], [Shutdown], [Registry] and [RunLoop] also work without an App.
package lifecycle
