// Package lanes is the one place in the fleet that decides which task runs next: in
// order within a key, in parallel across keys, again after a failure, and as a dead
// letter when its budget is spent. It stores nothing and knows no server. The caller
// brings the tasks and keeps what must outlive the process.
//
// A [Queue] has a lane for each key. A lane hands out its first task, and the next one
// only when the caller has ended the first. A task that failed holds its lane until it
// is tried again; the other lanes go on.
//
//	q := lanes.New[*message]()
//	run := lanes.Runner[*message]{
//		Workers: 8, Attempts: 4, Backoff: worker.DefaultBackoff(),
//		Handle: func(ctx context.Context, t *lanes.Task[*message]) error { … },
//		Dead:   func(ctx context.Context, t *lanes.Task[*message], why error) error { … },
//		Done:   func(t *lanes.Task[*message]) { progress.Done(t.Value.seq); t.Value.Ack() },
//	}
//	for each message {
//		if err := q.Add(m.key, m, m.failed); err != nil { … }
//	}
//	run.Run(ctx, q)                       // returns when ctx has ended
//	for _, m := range q.Close() { … }     // what no worker has begun, or what failed
//
// A caller that runs its tasks by itself uses [Queue.Next], [Queue.Done] and
// [Queue.Retry] without a Runner.
//
// [Progress] tells which numbered messages are done, in a few bytes: a floor, and what
// is done above it. A caller stores it with the effects of the messages and knows after
// a crash which of them it must not handle again.
//
// Handle and Dead are the caller's own functions. They call foreign code through
// internal/call.
package lanes
