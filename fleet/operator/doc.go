// Package operator is the operators' side of a fleet: one contract to see
// workflows, hosted workers and processes and to act on them, served as gRPC,
// gRPC-Web, Connect and REST from one address, and a dashboard on the same
// address for a browser.
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
// The contract is proto/lifecycle/operator/v1/operator.proto; package operatorv1
// is its Go form and package client a client. /openapi.json describes the REST
// paths, /ui/ is the dashboard, gRPC health and reflection are there.
//
// # Who may
//
// Without an [Authenticator] only the loopback is served, and every user of the
// machine is an operator there ([Config.LoopbackRole]). With one, every request
// must carry credentials that it knows. A viewer reads; an operator also acts.
// Every attempt to act is audited: who, what, to whom, with what outcome.
//
// # Errors
//
// Every error carries a code, a google.rpc.ErrorInfo whose reason is one of the
// Reason constants, and for a request that is wrong in itself a
// google.rpc.BadRequest that names each field.
package operator
