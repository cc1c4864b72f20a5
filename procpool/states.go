package procpool

import "github.com/pleme-io/lifecycle-go/fsm"

// WorkerState is the state of a worker process.
type WorkerState string

// The states of a worker process.
const (
	WorkerStarting     WorkerState = "starting"      // spawned, has not sent ready
	WorkerReady        WorkerState = "ready"         // waits for a query: it has a free place
	WorkerBusy         WorkerState = "busy"          // has as many queries as it takes, or has not confirmed their end
	WorkerShuttingDown WorkerState = "shutting_down" // the pool ends it
	WorkerDead         WorkerState = "dead"          // the process and its group have ended
)

// QueryState is the state of a query.
type QueryState string

// The states of a query. The last four are terminal, and a query enters exactly
// one of them.
const (
	QueryPending    QueryState = "pending"    // waits for a worker
	QueryProcessing QueryState = "processing" // a worker has it
	QueryStreaming  QueryState = "streaming"  // the first message has arrived
	QueryComplete   QueryState = "complete"   // the worker has answered
	QueryError      QueryState = "error"      // it failed, or its deadline has passed
	QueryCancelled  QueryState = "cancelled"  // its caller has cancelled it
	QueryRejected   QueryState = "rejected"   // the pool did not take it
)

// ConnState is the state of a worker's connection.
type ConnState string

// The states of a connection.
const (
	ConnDisconnected ConnState = "disconnected" // there is no connection
	ConnConnecting   ConnState = "connecting"   // the socket waits for the worker
	ConnConnected    ConnState = "connected"    // the worker has sent ready
)

// PoolState is the use of a pool's capacity.
type PoolState string

// The states of a pool's capacity.
const (
	PoolIdle       PoolState = "idle"        // there are no workers
	PoolActive     PoolState = "active"      // there is room for more
	PoolAtCapacity PoolState = "at_capacity" // another worker can only start when one has ended
)

// The kinds of the events in [Pool.Events].
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

// The models of the lives of which a pool has many.
var (
	workerModel = fsm.NewModel(KindWorker, workerTable)
	queryModel  = fsm.NewModel(KindQuery, queryTable)
	connModel   = fsm.NewModel(KindConnection, connTable)
)

// WorkerTransitions returns the transition table of a worker process. The caller
// owns the copy, as with the three below.
func WorkerTransitions() fsm.Table[WorkerState] { return workerTable.Clone() }

// QueryTransitions returns the transition table of a query. Each message is an
// edge from streaming to streaming; that edge publishes no event.
func QueryTransitions() fsm.Table[QueryState] { return queryTable.Clone() }

// ConnTransitions returns the transition table of a connection. Each message is an
// edge from connected to connected; that edge publishes no event.
func ConnTransitions() fsm.Table[ConnState] { return connTable.Clone() }

// PoolTransitions returns the transition table of a pool's capacity. A pool of one
// worker passes through active on its way from idle to at capacity and back.
func PoolTransitions() fsm.Table[PoolState] { return poolTable.Clone() }

// EventName returns the name that readers of other pools use for a change of a
// worker's state: worker:ready, worker:busy, worker:idle, worker:crashed. This
// pool adds worker:stopping and worker:stopped. It returns "" for any other event.
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
