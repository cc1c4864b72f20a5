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
// A worker has one query at a time unless it offers more places. [Pool.Do] waits for
// the answer. [Pool.Submit] also yields the messages that a worker streams while it
// works. An image or an archive needs no base64: [Pool.DoBytes], [Bytes] and
// [Query.Parts] carry bytes beside the JSON.
//
// Package procpool/child is the worker's side for Go; procpool/sdk has one file each for
// Python, Node and Ruby. procpool/cmd/conformance checks a worker in any language.
//
// Four kinds of life are in it, each with its table: the worker process
// ([WorkerTransitions]), the query ([QueryTransitions]), the connection
// ([ConnTransitions]) and the pool's capacity ([PoolTransitions]). [Pool.Events]
// publishes their events.
//
// Every query ends in exactly one terminal state. The caller gets an error that
// says what happened: [*WorkerError] when the worker reported it, [*CrashError],
// [*ProtocolError], [*PoisonError], [*SessionLostError], [*DeadlineError],
// [*RejectedError], or one that is [ErrCancelled], [ErrEvicted], [ErrDraining] or
// [ErrNoBytes].
//
// A [Pool] is a worker.Worker, and App.Add is all that it needs, behind a server as well as
// behind the hooks of a workflow. A stop of the App has this order. During the drain window
// the pool takes queries, because requests and hooks still come. Then the servers finish
// their requests. Then the App tells all units at once to stop: from now on the pool
// rejects new queries with [ErrDraining], finishes the queries that it has, and ends its workers.
// A feeder that is a unit itself is told at the same moment; it should not count a query
// that is rejected with ErrDraining as an attempt. [Pool.Drain] is for programs without an
// App. Do not give the pool to App.OnDrain: it would reject queries during the whole
// window, while they still come.
//
// A worker process runs as worker.Process describes: in a process group of its
// own, which ends with it. On Linux the kernel kills it when this process dies.
// Windows is not supported: it has no process groups.
package procpool
