// Package operator is the operators' side of a fleet. One contract shows workflows,
// hosted workers and processes and acts on them. One address serves it as gRPC,
// gRPC-Web, Connect and REST, with a dashboard for browsers.
//
//	op, err := operator.New(operator.Config{
//		Addr:      "127.0.0.1:8090",
//		Workflows: operator.FromManager(mgr),
//		Processes: operator.FromPresence(watcher),
//	})
//	if err != nil {
//		return err
//	}
//	app.Serve("operator", op.HTTPServer()).
//		OnShutdown("operator", op.Close)
//
// The contract is proto/lifecycle/operator/v1. Package operatorv1 is
// its Go form, and package client a client. The server also serves /openapi.json,
// which describes the REST paths, the dashboard at /ui/, gRPC health and reflection.
//
// # Authentication
//
// Without an [Authenticator] the server serves only the loopback, where every user
// of the machine is an operator ([Config.LoopbackRole]). With one, every request
// must carry credentials that it knows. A viewer reads; an operator also acts. The
// server audits every attempt to act: who, what, on what, with which outcome.
//
// # Errors
//
// Every error has a code, and a google.rpc.ErrorInfo whose reason is one of the
// Reason constants. An invalid request also has a google.rpc.BadRequest that names
// each invalid field.
//
// # Where to begin
//
// server.go makes a [Server]. guard.go checks every request and finds its caller, with an
// auth_*.go and session.go; call.go runs one method: the role (scope.go), the work, the
// audit. The service_*.go are the methods of the contract, and the area_*.go connect them with
// workflow.Manager, host.Host and presence.Fleet. service_processes.go and flows.go watch processes
// and workflows through package feed, diagnose.go applies the rules of package diagnosis, and
// package dashboard has the pages.
package operator
