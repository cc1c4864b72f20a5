package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// Every action has two steps: a page says what will happen, and its button does it.
// Both are plain forms.

// action is one action of an operator: what it needs, its two steps, and its outcome.
type action struct {
	method string   // of the API; the method determines the role that the action needs
	on     *subject // what it is about
	fields []string // names of fields of the form, besides the input and the subject's fields

	Title  string   // "" when ask sets it; the name of the subject follows it
	Does   []string // what will happen, in sentences
	Button string
	Danger bool
	Input  input

	// ask completes the question of the first step, nil for nothing to complete. It may
	// change the form.
	ask func(ctx context.Context, d *Dashboard, form url.Values, q *question) error
	// do does it, and returns the numbers of the outcome.
	do func(ctx context.Context, d *Dashboard, form url.Values) ([]int, error)

	done string                       // the outcome, with a %d for each number
	back func(form url.Values) string // the page that shows it; nil is the page of the subject
}

// input is the text that an action takes; without a name there is none.
type input struct {
	Name, Label string
	Needed      bool
	Lines       bool // it has several lines
}

var reason = input{Name: "reason", Label: "Reason"}

// subject is a kind of thing that actions are about.
type subject struct {
	section string   // of the navigation
	fields  []string // of the form that name it; the caller's role must cover the first one, or the whole fleet
	page    func(form url.Values) string
	// find returns an error when there is no such thing; nil for what is always there.
	find func(ctx context.Context, d *Dashboard, form url.Values) error
}

// isThere returns an error when the subject is not there.
func (s *subject) isThere(ctx context.Context, d *Dashboard, form url.Values) error {
	if s.find == nil {
		return nil
	}
	return s.find(ctx, d, form)
}

// of returns what the caller's role must cover, "" for the whole fleet.
func (s *subject) of(form url.Values) string {
	if len(s.fields) == 0 {
		return ""
	}
	return form.Get(s.fields[0])
}

// name returns the name of the subject for people, "" for the whole fleet.
func (s *subject) name(form url.Values) string {
	if len(s.fields) == 0 {
		return ""
	}
	return form.Get(s.fields[len(s.fields)-1])
}

var (
	onEntity = &subject{
		section: "workflows",
		fields:  []string{"type", "id"},
		page:    func(form url.Values) string { return entityPath(form.Get("type"), form.Get("id")) },
		find: func(ctx context.Context, d *Dashboard, form url.Values) error {
			_, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: form.Get("type"), Id: form.Get("id")})
			return err
		},
	}
	onProcess = &subject{
		section: "processes",
		fields:  []string{"id"},
		page:    func(form url.Values) string { return processPath(form.Get("id")) },
		find: func(ctx context.Context, d *Dashboard, form url.Values) error {
			_, err := d.cfg.Processes.GetProcess(ctx, &operatorv1.GetProcessRequest{Id: form.Get("id")})
			return err
		},
	}
	onWorker = &subject{
		section: "workers",
		fields:  []string{"id"},
		page:    func(form url.Values) string { return workerPath(form.Get("id")) },
		find: func(ctx context.Context, d *Dashboard, form url.Values) error {
			_, err := d.cfg.Workers.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: form.Get("id")})
			return err
		},
	}
	// The letters of a deleted worker stay, and a hook has letters too.
	onLetters = &subject{
		section: "workers",
		fields:  []string{"id"},
		page:    onWorker.page,
		find: func(ctx context.Context, d *Dashboard, form url.Values) error {
			req := &operatorv1.ListDeadLettersRequest{WorkerId: form.Get("id"), PageSize: 1}
			_, err := d.cfg.Workers.ListDeadLetters(ctx, req)
			return err
		},
	}
	onAllWorkers = &subject{
		section: "workers",
		page:    func(url.Values) string { return "/ui/workers" },
	}
)

// actions are all actions, by their name in an address.
var actions = map[string]*action{
	"transition": {
		method: "WorkflowService.Transition",
		on:     onEntity,
		fields: []string{"phase", "if_match"},
		Input:  input{Name: "note", Label: "Note, for the history"},
		ask:    askTransition,
		do:     send(workflows, operatorv1connect.WorkflowServiceHandler.Transition),
		done:   "The transition is done.",
	},
	"pause": {
		method: "WorkflowService.Pause",
		on:     onEntity,
		Title:  "Pause",
		Does: []string{
			"Its hooks, its timers and its deadline rest until it is resumed, and programs cannot move it.",
			"Operators can. What came due meanwhile happens at once when it is resumed.",
		},
		Button: "Pause this entity",
		Input:  input{Name: "reason", Label: "Reason, for the history"},
		do:     send(workflows, operatorv1connect.WorkflowServiceHandler.Pause),
		done:   "The entity is paused.",
	},
	"unpause": {
		method: "WorkflowService.Resume",
		on:     onEntity,
		Title:  "Resume",
		Does: []string{
			"Timers and the deadline that came due meanwhile fire at once, in order, and hooks get what happened.",
		},
		Button: "Resume this entity",
		Input:  input{Name: "note", Label: "Note, for the history"},
		do:     send(workflows, operatorv1connect.WorkflowServiceHandler.Resume),
		done:   "The entity goes on.",
	},
	"patch": {
		method: "WorkflowService.Patch",
		on:     onEntity,
		fields: []string{"field", "if_match"},
		Input:  input{Name: "value"},
		ask:    askPatch,
		do:     doPatch,
		done:   "The fields are changed.",
	},
	"drain": {
		method: "ProcessService.DrainProcess",
		on:     onProcess,
		Title:  "Drain",
		Does: []string{
			"Its readiness goes down, and the cluster sends new work elsewhere.",
			"What is in flight is finished within its drain window and shutdown grace.",
			"Then the process ends, for good. Its supervisor, such as Kubernetes, starts another in its place.",
		},
		Button: "Drain this process",
		Danger: true,
		Input:  reason,
		do:     send(processes, operatorv1connect.ProcessServiceHandler.DrainProcess),
		done:   "The process has begun to drain.",
	},
	"suspend": {
		method: "ProcessService.SuspendProcess",
		on:     onProcess,
		Title:  "Suspend",
		Does: []string{
			"Its readiness goes down until it is resumed, and the cluster sends new work elsewhere.",
			"Nothing stops: the process goes on working.",
		},
		Button: "Suspend readiness",
		Input:  input{Name: "reason", Label: "Reason", Needed: true},
		do:     send(processes, operatorv1connect.ProcessServiceHandler.SuspendProcess),
		done:   "Readiness is suspended.",
	},
	"resume": {
		method: "ProcessService.ResumeProcess",
		on:     onProcess,
		Title:  "Resume",
		Does:   []string{"Its readiness follows its checks again, and the cluster sends work here when they pass."},
		Button: "Resume readiness",
		do:     send(processes, operatorv1connect.ProcessServiceHandler.ResumeProcess),
		done:   "Readiness follows the checks again.",
	},
	"restart-unit": {
		method: "ProcessService.RestartUnit",
		on:     onProcess,
		fields: []string{"unit"},
		Button: "Restart this unit",
		Input:  reason,
		ask:    askRestartUnit,
		do:     send(processes, operatorv1connect.ProcessServiceHandler.RestartUnit),
		done:   "The unit was asked to restart: its state is below.",
	},
	"start": {
		method: "WorkerService.StartWorker",
		on:     onWorker,
		Title:  "Start",
		Does: []string{
			"The worker gets messages again, from where it stopped. Messages that arrived in between come first.",
		},
		Button: "Feed this worker",
		do:     send(workers, operatorv1connect.WorkerServiceHandler.StartWorker),
		done:   "The worker gets messages again.",
	},
	"stop": {
		method: "WorkerService.StopWorker",
		on:     onWorker,
		Title:  "Stop",
		Does: []string{
			"The worker finishes its current message and gets no other.",
			"Messages wait for it until it is started again. Nothing is lost.",
		},
		Button: "Stop this worker",
		do:     send(workers, operatorv1connect.WorkerServiceHandler.StopWorker),
		done:   "The worker is stopped.",
	},
	"delete": {
		method: "WorkerService.DeleteWorker",
		on:     onWorker,
		Title:  "Delete",
		Does: []string{
			"The worker finishes its current message.",
			"Then its subscription, its record and its code are removed. This cannot be undone.",
		},
		Button: "Delete this worker for good",
		Danger: true,
		do:     send(workers, operatorv1connect.WorkerServiceHandler.DeleteWorker),
		done:   "The worker is deleted.",
		back:   onAllWorkers.page,
	},
	"rollback": {
		method: "WorkerService.Rollback",
		on:     onWorker,
		fields: []string{"digest"},
		Title:  "Roll back",
		ask:    askRollback,
		do:     send(workers, operatorv1connect.WorkerServiceHandler.Rollback),
		done:   "The worker runs the earlier code.",
	},
	"promote": {
		method: "WorkerService.PromoteWorker",
		on:     onWorker,
		Title:  "Promote the canary of",
		Does: []string{
			"The canary becomes the worker's version, between two messages, and gets every message.",
			"The version before it stays in the list: you can roll back to it.",
		},
		Button: "Give it every message",
		do:     send(workers, operatorv1connect.WorkerServiceHandler.PromoteWorker),
		done:   "The canary is the worker's version now.",
	},
	"redrive": {
		method: "WorkerService.Redrive",
		on:     onLetters,
		fields: []string{"letter", "all", "group"},
		Title:  "Redrive dead letters of",
		Button: "Hand them to the worker again",
		ask:    askRedrive,
		do: func(ctx context.Context, d *Dashboard, form url.Values) ([]int, error) {
			ids, all, group := chosen(form)
			answer, err := d.cfg.Workers.Redrive(ctx, &operatorv1.RedriveRequest{
				WorkerId: form.Get("id"),
				Ids:      ids,
				All:      all,
				Group:    group,
			})
			return []int{int(answer.GetRedriven())}, err
		},
		done: "Dead letters given to the worker again: %d.",
		back: func(form url.Values) string {
			if form.Get("group") != "" {
				return lettersPath(form.Get("id"), "")
			}
			return workerPath(form.Get("id"))
		},
	},
	"edit": {
		method: "WorkerService.RedriveEdited",
		on:     onLetters,
		fields: []string{"letter", "as"},
		Button: "Hand the edited message to the worker",
		Input:  input{Name: "value", Label: "Message", Lines: true},
		ask:    askEdit,
		do:     doEdit,
		done:   "The edited message is given to the worker.",
		back:   lettersOfForm,
	},
	"discard": {
		method: "WorkerService.DiscardDeadLetters",
		on:     onLetters,
		fields: []string{"letter", "all", "group"},
		Title:  "Discard dead letters of",
		Button: "Discard for good",
		Danger: true,
		Input:  input{Name: "note", Label: "Why, for the audit", Needed: true},
		ask:    askDiscard,
		do: func(ctx context.Context, d *Dashboard, form url.Values) ([]int, error) {
			ids, all, group := chosen(form)
			answer, err := d.cfg.Workers.DiscardDeadLetters(ctx, &operatorv1.DiscardDeadLettersRequest{
				WorkerId: form.Get("id"),
				Ids:      ids,
				All:      all,
				Group:    group,
				Note:     form.Get("note"),
			})
			return []int{int(answer.GetDiscarded())}, err
		},
		done: "Dead letters discarded: %d.",
		back: lettersOfForm,
	},
	"recover": {
		method: "WorkerService.RecoverWorkers",
		on:     onAllWorkers,
		Title:  "Recover workers",
		Does: []string{
			"Every stored worker that should run and does not is loaded and gets messages again.",
			"One that fails does not stop the others.",
		},
		Button: "Recover workers",
		do: func(ctx context.Context, d *Dashboard, _ url.Values) ([]int, error) {
			answer, err := d.cfg.Workers.RecoverWorkers(ctx, &operatorv1.RecoverWorkersRequest{})
			return []int{len(answer.GetRecovered()), len(answer.GetFailures())}, err
		},
		done: "Recovery has run. Workers that run here: %d. Workers that could not be loaded: %d.",
	},
}

func workflows(d *Dashboard) operatorv1connect.WorkflowServiceHandler { return d.cfg.Workflows }
func workers(d *Dashboard) operatorv1connect.WorkerServiceHandler     { return d.cfg.Workers }
func processes(d *Dashboard) operatorv1connect.ProcessServiceHandler  { return d.cfg.Processes }

// send returns the do of an action that calls one method. Each field of the form has the name of
// the request's field that gets it.
func send[H, Req, Resp any](
	service func(*Dashboard) H, method func(H, context.Context, *Req) (*Resp, error),
) func(context.Context, *Dashboard, url.Values) ([]int, error) {
	return func(ctx context.Context, d *Dashboard, form url.Values) ([]int, error) {
		req := new(Req)
		if m, ok := any(req).(proto.Message); ok {
			fields := m.ProtoReflect().Descriptor().Fields()
			for i := range fields.Len() {
				field := fields.Get(i)
				if value := form.Get(string(field.Name())); value != "" && field.Kind() == protoreflect.StringKind {
					m.ProtoReflect().Set(field, protoreflect.ValueOfString(value))
				}
			}
		}
		_, err := method(service(d), ctx, req)
		return nil, err
	}
}

func lettersOfForm(form url.Values) string { return lettersPath(form.Get("id"), "") }

// numberKeys are the keys of the numbers of an outcome in an address.
var numberKeys = []string{"n", "failed"}

// outcome returns the sentence that an address selects. The address can only choose
// the sentence and its numbers.
func outcome(q url.Values) string {
	a := actions[q.Get("done")]
	if a == nil {
		return ""
	}
	var numbers []any
	for _, key := range numberKeys[:strings.Count(a.done, "%d")] {
		n, err := strconv.ParseInt(q.Get(key), 10, 64)
		if err != nil {
			n = 0
		}
		numbers = append(numbers, n)
	}
	return fmt.Sprintf(a.done, numbers...)
}

// question is the data of the page before an action.
type question struct {
	action
	Action string // its name
	Of     string // the subject
	Value  string // of the input
	Hidden url.Values
	Back   string
	Refuse string // why the action is not possible; then the page has no button
}

// may reports whether the caller may do an action on a type, a worker or a process.
func (d *Dashboard) may(r *http.Request, name, of string) bool {
	return d.cfg.May(r.Context(), actions[name].method, of)
}

func asked(r *http.Request) (name string, a *action, form url.Values, err error) {
	name = r.PathValue("action")
	if a = actions[name]; a == nil {
		return "", nil, nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no such action"))
	}
	if err := r.ParseForm(); err != nil {
		return "", nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return name, a, r.Form, nil
}

func (d *Dashboard) ask(r *http.Request, v *view) error {
	name, a, form, err := asked(r)
	if err != nil {
		return err
	}
	if err := a.on.isThere(r.Context(), d, form); err != nil {
		return err
	}
	if !d.may(r, name, a.on.of(form)) {
		return forbidden()
	}
	return d.question(r.Context(), v, name, a, form)
}

// question fills in the page before an action.
func (d *Dashboard) question(ctx context.Context, v *view, name string, a *action, form url.Values) error {
	ctx = d.cfg.Preview(ctx)
	of := a.on.name(form)
	q := &question{action: *a, Action: name, Of: of, Hidden: url.Values{}, Back: a.on.page(form)}
	q.Title = strings.TrimSpace(a.Title + " " + of)
	if a.ask != nil {
		if err := a.ask(ctx, d, form, q); err != nil {
			return err
		}
	}
	for _, key := range slices.Concat(a.on.fields, a.fields) {
		if values, ok := form[key]; ok {
			q.Hidden[key] = values
		}
	}
	v.Page, v.Section, v.Title, v.Data = "ask", a.on.section, q.Title, q
	return nil
}

func (d *Dashboard) act(r *http.Request, v *view) error {
	name, a, form, err := asked(r)
	if err != nil {
		return err
	}
	// The service checks the caller's role and audits refusals.
	numbers, err := a.do(r.Context(), d, form)
	if err != nil {
		if !d.may(r, name, a.on.of(form)) || a.on.isThere(r.Context(), d, form) != nil {
			return err
		}
		given := form.Get(a.Input.Name)
		if again := d.question(r.Context(), v, name, a, form); again != nil {
			return err
		}
		v.problem(err)
		if q, ok := v.Data.(*question); ok && given != "" {
			q.Value = given
		}
		return nil
	}
	back := a.back
	if back == nil {
		back = a.on.page
	}
	q := url.Values{"done": {name}}
	for i, n := range numbers {
		q.Set(numberKeys[i], strconv.Itoa(n))
	}
	v.redirect = back(form) + "?" + q.Encode()
	return nil
}
