package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
)

// Every action has two steps: a page says what will happen, and its button does it.
// Both are plain forms.

// question is the page before an action.
type question struct {
	Action string
	Title  string
	Of     string   // the object of the action
	Does   []string // what will happen, in sentences
	Button string
	Danger bool
	Input  string // the name of a text input, "" for none
	Label  string // the input's label
	Needed bool   // the input is required
	Area   bool   // the input has several lines
	Value  string
	Hidden url.Values
	Back   string
	Refuse string // why the action is not possible; then the page has no button
}

// done has the sentences to show after an action, by the key in the address. An
// address cannot make a page show any other text.
var done = map[string]string{
	"transition":   "The transition is done.",
	"patch":        "The fields are changed.",
	"drain":        "The process has begun to drain.",
	"suspend":      "Readiness is suspended.",
	"resume":       "Readiness follows the checks again.",
	"restart-unit": "The unit was asked to restart: its state is below.",
	"start":        "The worker gets messages again.",
	"stop":         "The worker is stopped.",
	"delete":       "The worker is deleted.",
	"rollback":     "The worker runs the earlier code.",
	"redrive":      "Dead letters given to the worker again: %d.",
	"edit":         "The edited message is given to the worker.",
	"discard":      "Dead letters discarded: %d.",
	"promote":      "The canary is the worker's version now.",
	"recover":      "Recovery has run. Workers that run here: %d. Workers that could not be loaded: %d.",
}

// outcome returns the sentence that an address selects. The address can only choose
// the sentence and its numbers.
func outcome(q url.Values) string {
	name := q.Get("done")
	number := func(key string) int64 {
		n, err := strconv.ParseInt(q.Get(key), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	switch name {
	case "redrive", "discard":
		return fmt.Sprintf(done[name], number("n"))
	case "recover":
		return fmt.Sprintf(done[name], number("n"), number("failed"))
	}
	return done[name]
}

// step is one action: its question, and the function that does it, which returns the
// numbers of the outcome.
type step struct {
	ask func(ctx context.Context, d *Dashboard, f url.Values) (*question, error)
	do  func(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error)
}

// methods are the methods that the actions call.
var methods = map[string]string{
	"transition": "WorkflowService.Transition", "patch": "WorkflowService.Patch",
	"drain": "ProcessService.DrainProcess", "suspend": "ProcessService.SuspendProcess", "resume": "ProcessService.ResumeProcess", "restart-unit": "ProcessService.RestartUnit",
	"start": "WorkerService.StartWorker", "stop": "WorkerService.StopWorker", "delete": "WorkerService.DeleteWorker",
	"rollback": "WorkerService.Rollback", "redrive": "WorkerService.Redrive", "edit": "WorkerService.RedriveEdited", "discard": "WorkerService.DiscardDeadLetters",
	"promote": "WorkerService.PromoteWorker", "recover": "WorkerService.RecoverWorkers",
}

// may reports whether the caller may do an action on a type, a worker or a process.
func (d *Dashboard) may(r *http.Request, name, of string) bool {
	return d.cfg.May(r.Context(), methods[name], of)
}

// about returns what an action is about: a type, a worker or a process.
func about(name string, form url.Values) string {
	switch name {
	case "transition", "patch":
		return form.Get("type")
	case "recover":
		return "" // all of the fleet's
	}
	return form.Get("id")
}

// asked returns the action and the form of a request.
func asked(r *http.Request) (string, step, url.Values, error) {
	name := r.PathValue("action")
	s, ok := steps[name]
	if !ok {
		return "", s, nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no such action"))
	}
	if err := r.ParseForm(); err != nil {
		return "", s, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return name, s, r.Form, nil
}

func (d *Dashboard) ask(r *http.Request, v *view) error {
	name, s, form, err := asked(r)
	if err != nil {
		return err
	}
	if !d.may(r, name, about(name, form)) {
		return forbidden()
	}
	return d.question(r.Context(), v, name, s, form)
}

func (d *Dashboard) question(ctx context.Context, v *view, name string, s step, form url.Values) error {
	q, err := s.ask(d.cfg.Preview(ctx), d, form)
	if err != nil {
		return err
	}
	q.Action, q.Hidden = name, url.Values{}
	for _, key := range []string{"type", "id", "phase", "field", "digest", "letter", "all", "unit", "group", "as", "if_match"} {
		if values, ok := form[key]; ok {
			q.Hidden[key] = values
		}
	}
	v.Page, v.Title, v.Data = "ask", q.Title, q
	v.Section = map[string]string{"transition": "workflows", "patch": "workflows", "drain": "processes", "suspend": "processes", "resume": "processes", "restart-unit": "processes"}[name]
	if v.Section == "" {
		v.Section = "workers"
	}
	return nil
}

func (d *Dashboard) act(r *http.Request, v *view) error {
	name, s, form, err := asked(r)
	if err != nil {
		return err
	}
	// The service checks the caller's role and audits refusals.
	numbers, err := s.do(r.Context(), d, form)
	if err != nil {
		if !d.may(r, name, about(name, form)) {
			return err
		}
		given := form.Get("note") + form.Get("reason") + form.Get("value")
		if again := d.question(r.Context(), v, name, s, form); again != nil {
			return err
		}
		v.Problem, v.code = text(err), httpcode.Of(connect.CodeOf(err))
		if q, ok := v.Data.(*question); ok && given != "" {
			q.Value = given
		}
		return nil
	}
	var back string
	switch {
	case name == "delete" || name == "recover":
		back = "/ui/workers"
	case form.Get("type") != "":
		back = entityPath(form.Get("type"), form.Get("id"))
	case name == "drain" || name == "suspend" || name == "resume" || name == "restart-unit":
		back = processPath(form.Get("id"))
	case name == "edit" || name == "discard" || name == "redrive" && form.Get("group") != "":
		back = lettersPath(form.Get("id"), "")
	default:
		back = workerPath(form.Get("id"))
	}
	if numbers == nil {
		numbers = url.Values{}
	}
	numbers.Set("done", name)
	v.redirect = back + "?" + numbers.Encode()
	return nil
}
