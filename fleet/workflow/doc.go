// Package workflow keeps durable lives: named entities whose phases change along
// a table, stored in NATS key-value buckets, so that they outlive every process
// that works on them and are seen by all.
//
// It is no workflow engine. Who does the work, and when, is the program's; this
// package decides which change of phase is allowed, stores it once, and tells
// everybody.
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
//   - operator_writable: may be patched by [Manager.UpdateFromOperator];
//   - indexable: [ListOptions].Match on it is answered from an index.
//
// # What is stored
//
// An entity is one key of its bucket, and every write of it one message: the
// record as JSON, and in the headers the operation's id, the phase, and for a
// transition its source and note. It is published with the revision that it was
// decided on; the server refuses it when the record has changed since, and the
// Manager decides again. So a transition and its audit trail cannot come apart,
// and no two writers undo each other.
//
// # Reading
//
// A Manager holds a view of every bucket that its workflows live in, fed by the
// server. Queries are answered from its indexes, and see at least this
// process's own writes. Get and History ask the server.
package workflow
