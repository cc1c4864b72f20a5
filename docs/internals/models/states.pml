/* Made from the tables in the Go code by tools/models (make docs). Do not edit. */

/* the phases of an App: app.go, phases */
mtype = {
	PhaseCreated,
	PhaseStarting,
	PhaseRunning,
	PhaseDraining,
	PhaseStopping,
	PhaseStopped,
	PhaseFailed,
	PhaseKilled
};
#define PhasesAllow(from, to) ( \
	(from) == PhaseCreated && ((to) == PhaseStarting || (to) == PhaseFailed || (to) == PhaseKilled) || \
	(from) == PhaseStarting && ((to) == PhaseRunning || (to) == PhaseStopping || (to) == PhaseKilled) || \
	(from) == PhaseRunning && ((to) == PhaseDraining || (to) == PhaseKilled) || \
	(from) == PhaseDraining && ((to) == PhaseStopping || (to) == PhaseKilled) || \
	(from) == PhaseStopping && ((to) == PhaseStopped || (to) == PhaseFailed || (to) == PhaseKilled) )

/* how a drainer, a hook or a reload goes: app.go, steps */
mtype = {
	resultPending,
	ResultRunning,
	ResultOK,
	ResultFailed,
	ResultPanicked,
	ResultAbandoned,
	ResultSkipped
};
#define StepsAllow(from, to) ( \
	(from) == resultPending && ((to) == ResultRunning || (to) == ResultSkipped) || \
	(from) == ResultRunning && ((to) == ResultOK || (to) == ResultFailed || (to) == ResultPanicked || (to) == ResultAbandoned) )

/* the statuses of a worker: worker/status.go, transitions */
mtype = {
	StatusCreated,
	StatusPending,
	StatusStarting,
	StatusRunning,
	StatusSuspended,
	StatusStopping,
	StatusStopped,
	StatusFinished,
	StatusFailed,
	StatusKilled
};
#define StatusesAllow(from, to) ( \
	(from) == StatusCreated && ((to) == StatusStarting || (to) == StatusPending || (to) == StatusStopped) || \
	(from) == StatusPending && ((to) == StatusStarting || (to) == StatusStopped) || \
	(from) == StatusStarting && ((to) == StatusRunning || (to) == StatusFailed || (to) == StatusStopping || (to) == StatusStopped) || \
	(from) == StatusRunning && ((to) == StatusSuspended || (to) == StatusStopping || (to) == StatusFinished || (to) == StatusFailed || (to) == StatusStopped) || \
	(from) == StatusSuspended && ((to) == StatusRunning || (to) == StatusStopping || (to) == StatusFailed) || \
	(from) == StatusStopping && ((to) == StatusStopped || (to) == StatusFailed || (to) == StatusKilled) )

/* the steps of a goodbye on HTTP/2: internal/httpdrain/http2conn.go, notAsked */
mtype = {
	goodbye_notAsked,
	goodbye_whenQuiet,
	goodbye_asked,
	goodbye_waiting,
	goodbye_ending,
	goodbye_said
};

/* what became of a write without an answer: fleet/workflow/publish.go, undecided */
mtype = {
	outcome_undecided,
	outcome_landed,
	outcome_superseded,
	outcome_untraceable
};

/* A record of the code says what happens: see record.go in internal/models. */
#ifdef RECORD
byte events;
short latest;
#define EVENT(life, state) ((life) * 64 + (state))
inline event(life, state) { d_step { events++; latest = EVENT(life, state) } }
#else
inline event(life, state) { skip }
#endif
