// Package workflow keeps durable lives: named entities whose phases change along
// a table. They are stored in NATS key-value buckets, so they outlive the
// processes that work on them, and every process sees them.
//
// It is not a workflow engine. The program decides who does the work, and when.
// This package decides which change of phase is allowed, stores it once, and
// publishes it.
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
// An entity is one key of its bucket, and each write of it is one message. The
// body is the record as JSON. The headers have the operation's id, the phase, and
// for a transition its source and note. The Manager publishes the message with the
// revision that it decided on. The server refuses it when the record has changed
// since, and the Manager decides again. So a transition is always stored with its
// audit trail, and no writer undoes the write of another.
//
// # Reading
//
// A Manager holds a view of every bucket that its workflows use; the server feeds
// it. Queries are answered from the view's indexes and see at least this process's
// own writes. Get and History ask the server.
package workflow
