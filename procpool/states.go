package procpool

import (
	"slices"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// WorkerState says where in its life a worker process is.
type WorkerState string

// The states of a worker process.
const (
	WorkerStarting     WorkerState = "starting"      // it was spawned, and has not said that it is ready
	WorkerReady        WorkerState = "ready"         // it waits for a query
	WorkerBusy         WorkerState = "busy"          // it has a query, or has not confirmed the end of one
	WorkerShuttingDown WorkerState = "shutting_down" // it was told to end
	WorkerDead         WorkerState = "dead"          // it has ended, and nothing of it is left
)

// QueryState says where in its life a query is.
type QueryState string

// The states of a query. The last four are terminal, and a query enters exactly
// one of them.
const (
	QueryPending    QueryState = "pending"    // it waits for a worker
	QueryProcessing QueryState = "processing" // a worker has it
	QueryStreaming  QueryState = "streaming"  // the first message has arrived
	QueryComplete   QueryState = "complete"   // it was answered
	QueryError      QueryState = "error"      // it went wrong, or its deadline has passed
	QueryCancelled  QueryState = "cancelled"  // its caller has given it up
	QueryRejected   QueryState = "rejected"   // the pool did not take it
)

// ConnState says where in its life the connection of a worker is.
type ConnState string

// The states of a connection.
const (
	ConnDisconnected ConnState = "disconnected" // there is none, yet or any more
	ConnConnecting   ConnState = "connecting"   // its socket waits for the worker
	ConnConnected    ConnState = "connected"    // the worker has said that it is ready
)

// PoolState says how much of its capacity a pool uses.
type PoolState string

// The states of a pool's capacity.
const (
	PoolIdle       PoolState = "idle"        // there are no workers
	PoolActive     PoolState = "active"      // there is room for more
	PoolAtCapacity PoolState = "at_capacity" // a worker has to go before another can come
)

// The kinds of the events that [Pool.Events] has.
const (
	KindPool       = "procpool"
	KindWorker     = "procpool.worker"
	KindConnection = "procpool.connection"
	KindQuery      = "procpool.query"
)

var (
	workerTable = fsm.Table[WorkerState]{
		WorkerStarting:     {WorkerReady, WorkerDead, WorkerShuttingDown},
		WorkerReady:        {WorkerBusy, WorkerShuttingDown, WorkerDead},
		WorkerBusy:         {WorkerReady, WorkerShuttingDown, WorkerDead},
		WorkerShuttingDown: {WorkerDead},
		WorkerDead:         {},
	}
	queryTable = fsm.Table[QueryState]{
		QueryPending:    {QueryProcessing, QueryRejected, QueryCancelled, QueryError},
		QueryProcessing: {QueryStreaming, QueryError, QueryCancelled, QueryComplete},
		QueryStreaming:  {QueryStreaming, QueryComplete, QueryError, QueryCancelled},
		QueryComplete:   {},
		QueryError:      {},
		QueryCancelled:  {},
		QueryRejected:   {},
	}
	connTable = fsm.Table[ConnState]{
		ConnDisconnected: {ConnConnecting},
		ConnConnecting:   {ConnConnected, ConnDisconnected},
		ConnConnected:    {ConnConnected, ConnDisconnected},
	}
	poolTable = fsm.Table[PoolState]{
		PoolIdle:       {PoolActive},
		PoolActive:     {PoolActive, PoolAtCapacity, PoolIdle},
		PoolAtCapacity: {PoolActive, PoolAtCapacity},
	}
)

// WorkerTransitions returns the table that every worker process lives by. The
// caller owns what it gets, as with the three below.
func WorkerTransitions() fsm.Table[WorkerState] { return clone(workerTable) }

// QueryTransitions returns the table that every query lives by. Streaming
// follows streaming with each message; that edge makes no event.
func QueryTransitions() fsm.Table[QueryState] { return clone(queryTable) }

// ConnTransitions returns the table that every connection lives by. Connected
// follows connected with each message; that edge makes no event.
func ConnTransitions() fsm.Table[ConnState] { return clone(connTable) }

// PoolTransitions returns the table that a pool's capacity changes by. A pool
// of one worker passes through active on its way from idle to at capacity and
// back.
func PoolTransitions() fsm.Table[PoolState] { return clone(poolTable) }

// AddedWorkerEdges returns the edges of [WorkerTransitions] that the state
// machine's original drawing does not have: a pool may be stopped while a worker
// starts.
func AddedWorkerEdges() []fsm.Edge[WorkerState] {
	return []fsm.Edge[WorkerState]{{From: WorkerStarting, To: WorkerShuttingDown}}
}

// AddedQueryEdges returns the edges of [QueryTransitions] that the original
// drawing does not have: a query may be given up, or its deadline may pass,
// while it waits, and an answer need not be a stream.
func AddedQueryEdges() []fsm.Edge[QueryState] {
	return []fsm.Edge[QueryState]{
		{From: QueryPending, To: QueryCancelled},
		{From: QueryPending, To: QueryError},
		{From: QueryProcessing, To: QueryComplete},
	}
}

func clone[S ~string](t fsm.Table[S]) fsm.Table[S] {
	out := make(fsm.Table[S], len(t))
	for from, to := range t {
		out[from] = slices.Clone(to)
	}
	return out
}

// EventName returns the name under which a change of a worker's state is known
// to readers of other pools: worker:ready, worker:busy, worker:idle,
// worker:crashed, and, which are ours, worker:stopping and worker:stopped. Any
// other event has none, and "" is returned.
func EventName(e fsm.Event) string {
	if e.Kind != KindWorker {
		return ""
	}
	from, to := WorkerState(e.From), WorkerState(e.To)
	switch {
	case to == WorkerReady && from == WorkerBusy:
		return "worker:idle"
	case to == WorkerReady:
		return "worker:ready"
	case to == WorkerBusy:
		return "worker:busy"
	case to == WorkerShuttingDown:
		return "worker:stopping"
	case to == WorkerDead && from == WorkerShuttingDown && e.Cause == nil:
		return "worker:stopped"
	case to == WorkerDead:
		return "worker:crashed"
	}
	return ""
}
