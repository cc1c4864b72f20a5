// Package workflow stores entities whose phases change along a table: orders, missions,
// batches. An entity is one key of a NATS key-value bucket, so it outlives the processes
// that work on it, and every process sees it.
//
// It is not a workflow engine. The program decides who does the work, and when. This
// package decides which change of phase is allowed, stores it once with its source and
// note, and publishes it. It uses JetStream ([fleet/broker] connects), fsm for the tables,
// and a lease for the work that one process does for all: [Manager.Deadlines] and
// [Manager.Hooks]. Begin with [NewManager], [Manager.Register], [Manager.Create] and
// [Manager.Transition].
//
//	type Mission struct {
//		ID       string `json:"id"       lifecycle:"id"`
//		State    string `json:"phase"    lifecycle:"phase"`
//		Org      string `json:"org"      lifecycle:"indexable"`
//		Priority int    `json:"priority" lifecycle:"operator_writable"`
//	}
//
// with the methods of [Participant] on *Mission. Then:
//
//	mgr := workflow.NewManager(b.JetStream(), logger)
//	defer mgr.Close()
//	err := mgr.Register("drone-survey", func() workflow.Participant { return new(Mission) }, workflow.Transitions{
//		"planning":  {"flying", "aborted"},
//		"flying":    {"landing", "aborted"},
//		"landing":   {"completed", "failed"},
//		"completed": {}, "failed": {}, "aborted": {},
//	})
//	missions := workflow.For[*Mission](mgr, "drone-survey")
//	err = missions.Transition(ctx, "m-17", "flying", workflow.TransitionSourceOperator, "wind is fine")
//
// # Struct tags
//
// The tag `lifecycle:"…"` holds, separated by commas:
//
//   - id: the field behind EntityID, exactly one, a string;
//   - phase: the field behind Phase, exactly one, a string;
//   - readonly: never operator-writable;
//   - operator_writable: [Manager.UpdateFromOperator] may set it;
//   - indexable: an index answers [ListOptions].Match on it.
//
// # What is stored
//
// Each write of an entity is one message. The body is the record as JSON. The headers have
// the operation's id, the phases, the source and the note. The Manager publishes the
// message with the revision that it decided on. The server refuses it when the record has
// changed since, and the Manager decides again. So a transition is always stored with its
// audit trail, and no writer undoes the write of another.
//
// # Reading
//
// A Manager holds a view of every bucket that its workflows use; the server feeds it.
// Queries are answered from the view's indexes and see at least this process's own writes.
// Get and History ask the server.
//
// # The code
//
// A write goes through verbs.go (what is allowed), write.go and operation.go (the decision
// and its attempts), publish.go (the message and its outcome) and ends in view.go. A view
// is fed by follower.go, with removals.go for what went without a message, and is asked through
// list.go and scan.go. journal.go has the history of all writes; hookrun.go reads it.
//
// [fleet/broker]: https://pkg.go.dev/github.com/pleme-io/lifecycle-go/fleet/broker
package workflow
