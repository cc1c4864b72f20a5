package operator

import (
	"context"
	"reflect"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Workflows is where a [Server] finds durable workflows. [FromManager] makes one from
// a workflow.Manager. The server has checked the form of requests. Methods return an
// [*Error]; any other error is internal.
type Workflows interface {
	// Definitions returns every type, with its counts, sorted by type.
	Definitions(ctx context.Context) ([]*operatorv1.Definition, error)
	// Definition returns one type; ReasonUnknownType when there is none.
	Definition(ctx context.Context, typ string) (*operatorv1.Definition, error)
	// FieldType returns the Go type of a field of the workflow's state, by its
	// JSON name. It returns false when the state has no such field.
	FieldType(typ, field string) (reflect.Type, bool)
	// List returns at most q.Limit entities whose ids are after q.After, sorted
	// by id.
	List(ctx context.Context, typ string, q workflow.ListOptions) ([]*operatorv1.Entity, error)
	// Counts returns the phases that are not terminal and have entities, sorted by phase, and for
	// how long those have been there: Stuck counts those that have been for at least longer.
	Counts(ctx context.Context, typ string, longer time.Duration) ([]workflow.PhaseCount, error)
	// Get returns one entity; ReasonNotFound when there is none.
	Get(ctx context.Context, typ, id string) (*operatorv1.Entity, error)
	// Transition moves an entity and returns it with the phase that it left. who is for the
	// history, and revision is the one that the entity must have, 0 for any.
	Transition(
		ctx context.Context, req *operatorv1.TransitionRequest, who string, revision uint64,
	) (entity *operatorv1.Entity, from string, err error)
	// Pause pauses or resumes an entity and returns it.
	Pause(ctx context.Context, p Pause) (*operatorv1.Entity, error)
	// Patch changes fields, which have the Go types of the state, and returns the entity. revision
	// is as for Transition.
	Patch(
		ctx context.Context, req *operatorv1.PatchRequest, fields map[string]any, revision uint64,
	) (*operatorv1.Entity, error)
	// History returns an entity's history, oldest first, and whether older entries are
	// gone.
	History(ctx context.Context, typ, id string) (entries []*operatorv1.HistoryEntry, truncated bool, err error)
	// Watch sends a Put for everything that exists, then Sync, and then each
	// change, until ctx ends. After a Gap it begins again. Only one watch of a
	// type runs at a time, however many clients watch.
	Watch(ctx context.Context, typ string, to Sink[*operatorv1.Entity]) error
}

// Sink takes the items of a watch with its methods Put, Delete, Sync and Gap.
// They never block.
type Sink[T any] = stream.Sink[T]

// Pause asks for a pause of an entity, or for the end of one.
type Pause struct {
	Type, ID string
	Note     string // why
	Who      string // for the history
	Resume   bool   // end the pause
	Revision uint64 // the revision that the entity must have; 0 for any
}

// Workers is where a [Server] finds hosted workers. As with [Workflows], the server
// has checked the form of requests, and methods return an [*Error].
type Workers interface {
	// Create makes a worker; ReasonExists when its id is taken, ReasonBadCode
	// when its code does not load.
	Create(ctx context.Context, req *operatorv1.CreateWorkerRequest, who string) (*operatorv1.Worker, error)
	// List returns every worker.
	List(ctx context.Context) ([]*operatorv1.Worker, error)
	// Get returns one; ReasonNotFound when there is none.
	Get(ctx context.Context, id string) (*operatorv1.Worker, error)
	Start(ctx context.Context, id, who string) (*operatorv1.Worker, error)
	Stop(ctx context.Context, id, who string) (*operatorv1.Worker, error)
	LoadCode(ctx context.Context, id string, code *operatorv1.Code, who string) (*operatorv1.Worker, error)
	Rollback(ctx context.Context, id, digest, who string) (*operatorv1.Worker, error)
	// Promote gives every message to the worker's canary; ReasonInvalid when it has none.
	Promote(ctx context.Context, id, who string) (*operatorv1.Worker, error)
	Delete(ctx context.Context, id, who string) error
	History(ctx context.Context, id string) ([]*operatorv1.CodeVersion, error)
	Recover(ctx context.Context, who string) (*operatorv1.RecoverWorkersResponse, error)
	Letters
	// Code returns the code of two versions and how their settings differ. An empty
	// digest is the newest version, or the one before it; ReasonNotFound when there is none.
	Code(ctx context.Context, id, from, to string) (*host.Comparison, error)
	// Activity returns what the worker did in the last minutes, an empty answer when no
	// host runs it.
	Activity(ctx context.Context, id string) (*operatorv1.WorkerActivity, error)
	// Apply makes a worker be as its spec says. With dryRun it only says what would
	// change.
	Apply(ctx context.Context, spec *operatorv1.WorkerSpec, dryRun bool, who string) (*operatorv1.ApplyWorkerResponse, error)
	// Logs returns at most limit of the newest lines before the one with the number
	// before, oldest first; 0 is the end.
	Logs(ctx context.Context, id string, before int64, limit int) ([]*operatorv1.WorkerLogLine, error)
	// FollowLogs sends every line behind the number after, until ctx ends or send
	// fails, and returns that error.
	FollowLogs(ctx context.Context, id string, after int64, send func(*operatorv1.WorkerLogLine) error) error
	// State returns at most limit keys after the one with the number after, and the
	// number of the last one, 0 when there are no more.
	State(ctx context.Context, id string, after uint64, limit int) (entries []*operatorv1.StateEntry, next uint64, err error)
	// Value returns one key with its whole value; ReasonNotFound when there is none.
	Value(ctx context.Context, id, key string) (*operatorv1.StateEntry, error)
	// Timers returns at most limit timers after the one with the number after, and the
	// number of the last one, 0 when there are no more.
	Timers(ctx context.Context, id string, after uint64, limit int) (timers []*operatorv1.WorkerTimer, next uint64, err error)
	// CancelTimer removes a timer; ReasonNotFound when there is none.
	CancelTimer(ctx context.Context, id, key, name, who string) error
	// Test runs the code of a worker with a message, and publishes and stores nothing.
	Test(ctx context.Context, req *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error)
}

// Processes is where a [Server] finds the processes of the fleet. [FromPresence]
// makes one from a presence.Fleet. The methods with an id return ReasonUnreachable when
// the process does not answer, and ReasonRefused when it refuses.
type Processes interface {
	// Watch is like Workflows.Watch, for processes. The server lists what it reports.
	Watch(ctx context.Context, to Sink[*operatorv1.Process]) error
	// Events returns the events of the journal that match, newest first, and the value of
	// Before for the next page, 0 when there is none.
	Events(ctx context.Context, q presence.EventQuery) (events []*operatorv1.Event, next uint64, err error)
	// Drain, Suspend and Resume ask the process and return its phase when it has agreed.
	Drain(ctx context.Context, id, reason, who string) (phase string, err error)
	Suspend(ctx context.Context, id, reason, who string) (phase string, err error)
	Resume(ctx context.Context, id, who string) (phase string, err error)
	// RestartUnit restarts a supervised unit by its path.
	RestartUnit(ctx context.Context, id, unit, reason, who string) (*operatorv1.RestartUnitResponse, error)
	// Logs returns the newest lines of a process's log after the one with the number
	// after, at most limit.
	Logs(ctx context.Context, id, who string, after uint64, limit int) (*operatorv1.GetLogsResponse, error)
	// Stacks returns the stacks of a process's goroutines.
	Stacks(ctx context.Context, id, who string) (string, error)
	// Config returns a process's configuration.
	Config(ctx context.Context, id, who string) (*operatorv1.GetConfigResponse, error)
}
