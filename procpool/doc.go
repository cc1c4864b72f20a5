// Package procpool keeps a pool of worker processes, in any language, and sends
// them queries over unix sockets in NDJSON (package wire).
//
//	pool, err := procpool.New(procpool.Config{
//		Command:    func() *exec.Cmd { return exec.Command("python3", "thumbnails.py") },
//		MaxWorkers: 4,
//		MaxQueue:   64,
//	})
//	…
//	app.Add(pool)
//	…
//	result, err := pool.Do(ctx, json.RawMessage(`{"image":"a.png"}`))
//
// A worker has one query at a time. [Pool.Do] waits for an answer, [Pool.Submit]
// gives the messages that a worker streams while it works. The other side is
// package procpool/child for Go, and one file each for Python and Node under
// procpool/sdk; whoever writes a worker in another language can hold it against
// procpool/cmd/conformance.
//
// Four kinds of life are in it, each with its table: the worker process
// ([WorkerTransitions]), the query ([QueryTransitions]), the connection
// ([ConnTransitions]) and the pool's capacity ([PoolTransitions]). Their events
// are read from [Pool.Events].
//
// Whatever a worker does, a query ends in exactly one terminal state, and its
// caller gets an error that says what happened: [*WorkerError] when the worker
// said so, [*CrashError], [*ProtocolError], [*DeadlineError], [*RejectedError],
// [ErrCancelled].
//
// A [Pool] is a worker.Worker, and has the method of a lifecycle.Drainable. An
// App stops its units after its servers, so a pool behind a server needs App.Add
// alone; OnDrain is for one that is fed from elsewhere, as it takes no queries
// from the beginning of the drain.
//
// Worker processes live and die as worker.Process describes: in a process group
// of their own, which is ended with them, and on Linux killed by the kernel when
// this process dies. Windows is not supported: it has no process groups.
package procpool
