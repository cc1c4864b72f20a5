// Package broker connects a process to a NATS with JetStream: a server embedded in this
// process, on a directory and without an open port, or an external cluster. The rest of
// the program uses both in the same way.
//
//	b, err := broker.Connect(ctx, broker.Config{
//		StoreDir: "data/nats",                 // or URL: "nats://nats:4222"
//		Buckets:  []jetstream.KeyValueConfig{{Bucket: "MISSIONS", History: 64}},
//	})
//	if err != nil {
//		return err
//	}
//	app.Probe("nats", b).OnShutdown("nats", b.Close)
//
// Begin with [Connect]. It uses the NATS server and its client: embedded.go runs the
// server, specs.go makes the declared streams and buckets, and full.go, with package canary,
// finds out whether the server takes writes. Packages natserr and identity build no server.
package broker
