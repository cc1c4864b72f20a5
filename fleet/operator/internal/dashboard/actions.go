package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// An action is asked for twice: a page says what will happen, and its button
// does it. Both are plain forms.

// question is the page before an action.
type question struct {
	Action string
	Title  string
	Does   []string // what will happen, in sentences
	Button string
	Danger bool
	Input  string // the name of a text that is asked for, "" for none
	Label  string // what it is
	Needed bool   // whether it must be given
	Area   bool   // whether it is long
	Value  string
	Hidden url.Values
	Back   string
	Refuse string // why it cannot be done, which there is no button for
}

// done are the sentences after an action, by the key in the address: an address
// cannot make a page say anything else.
var done = map[string]string{
	"transition": "The transition is done.",
	"patch":      "The fields are changed.",
	"drain":      "The process has begun to drain.",
	"suspend":    "Readiness is suspended.",
	"resume":     "Readiness is what the checks say again.",
	"start":      "The worker is fed again.",
	"stop":       "The worker is stopped.",
	"delete":     "The worker is deleted.",
	"rollback":   "The worker runs the earlier code.",
	"redrive":    "The messages are with the worker again.",
	"recover":    "Recovery has run.",
	"code":       "The worker runs the new code.",
}

// step is one action: what it asks, and what it does.
type step struct {
	ask func(ctx context.Context, d *Dashboard, f url.Values) (*question, error)
	do  func(ctx context.Context, d *Dashboard, f url.Values) error
}

var steps = map[string]step{
	"transition": {askTransition, doTransition},
	"patch":      {askPatch, doPatch},
	"drain": {
		func(_ context.Context, _ *Dashboard, f url.Values) (*question, error) {
			return &question{Title: "Drain " + f.Get("id"), Danger: true, Button: "Drain this process", Input: "reason", Label: "Reason", Back: processPath(f.Get("id")), Does: []string{
				"Its readiness goes down, and the cluster sends new work elsewhere.",
				"What is in flight is finished within its drain window and shutdown grace.",
				"Then the process ends, for good. Whoever runs it, Kubernetes for one, starts another in its place.",
			}}, nil
		},
		func(ctx context.Context, d *Dashboard, f url.Values) error {
			_, err := d.cfg.Processes.DrainProcess(ctx, &operatorv1.DrainProcessRequest{Id: f.Get("id"), Reason: f.Get("reason")})
			return err
		},
	},
	"suspend": {
		func(_ context.Context, _ *Dashboard, f url.Values) (*question, error) {
			return &question{Title: "Suspend " + f.Get("id"), Button: "Suspend readiness", Input: "reason", Label: "Reason", Needed: true, Back: processPath(f.Get("id")), Does: []string{
				"Its readiness goes down until it is resumed, and the cluster sends new work elsewhere.",
				"Nothing stops: what it does goes on.",
			}}, nil
		},
		func(ctx context.Context, d *Dashboard, f url.Values) error {
			_, err := d.cfg.Processes.SuspendProcess(ctx, &operatorv1.SuspendProcessRequest{Id: f.Get("id"), Reason: f.Get("reason")})
			return err
		},
	},
	"resume": {
		func(_ context.Context, _ *Dashboard, f url.Values) (*question, error) {
			return &question{Title: "Resume " + f.Get("id"), Button: "Resume readiness", Back: processPath(f.Get("id")), Does: []string{
				"Its readiness is what its checks say again, and the cluster sends work here when they pass.",
			}}, nil
		},
		func(ctx context.Context, d *Dashboard, f url.Values) error {
			_, err := d.cfg.Processes.ResumeProcess(ctx, &operatorv1.ResumeProcessRequest{Id: f.Get("id")})
			return err
		},
	},
	"start": onWorker("Start", "Feed this worker", false, []string{"The worker is fed again, from where it left off. Messages that arrived in between come first."},
		func(ctx context.Context, d *Dashboard, id string, _ url.Values) error {
			_, err := d.cfg.Workers.StartWorker(ctx, &operatorv1.StartWorkerRequest{Id: id})
			return err
		}),
	"stop": onWorker("Stop", "Stop this worker", false, []string{"The message that it works on is finished, and it gets no other.", "Messages wait for it until it is started again. Nothing is lost."},
		func(ctx context.Context, d *Dashboard, id string, _ url.Values) error {
			_, err := d.cfg.Workers.StopWorker(ctx, &operatorv1.StopWorkerRequest{Id: id})
			return err
		}),
	"delete": onWorker("Delete", "Delete this worker for good", true, []string{"The message that it works on is finished.", "Then its subscription, its record and its code are removed. This cannot be undone."},
		func(ctx context.Context, d *Dashboard, id string, _ url.Values) error {
			_, err := d.cfg.Workers.DeleteWorker(ctx, &operatorv1.DeleteWorkerRequest{Id: id})
			return err
		}),
	"rollback": onWorker("Roll back", "Run the earlier code", false, []string{"The worker changes to the code with the digest below, between two messages. No message sees half of each."},
		func(ctx context.Context, d *Dashboard, id string, f url.Values) error {
			_, err := d.cfg.Workers.Rollback(ctx, &operatorv1.RollbackRequest{Id: id, Digest: f.Get("digest")})
			return err
		}),
	"redrive": onWorker("Redrive dead letters of", "Hand them to the worker again", false, []string{"The worker gets the messages once more, each with its whole budget of attempts.", "What fails again comes back to the dead letters."},
		func(ctx context.Context, d *Dashboard, id string, f url.Values) error {
			req := &operatorv1.RedriveRequest{WorkerId: id, Ids: f["letter"]}
			req.All = len(req.GetIds()) == 0
			_, err := d.cfg.Workers.Redrive(ctx, req)
			return err
		}),
	"recover": {
		func(context.Context, *Dashboard, url.Values) (*question, error) {
			return &question{Title: "Recover workers", Button: "Recover workers", Back: "/ui/workers", Does: []string{
				"Every stored worker that should run and does not is loaded and fed again.",
				"One that fails does not stop the others.",
			}}, nil
		},
		func(ctx context.Context, d *Dashboard, _ url.Values) error {
			_, err := d.cfg.Workers.RecoverWorkers(ctx, &operatorv1.RecoverWorkersRequest{})
			return err
		},
	},
}

// onWorker is an action on one hosted worker.
func onWorker(verb, button string, danger bool, does []string, do func(context.Context, *Dashboard, string, url.Values) error) step {
	return step{
		ask: func(_ context.Context, _ *Dashboard, f url.Values) (*question, error) {
			q := &question{Title: verb + " " + f.Get("id"), Button: button, Danger: danger, Does: does, Back: workerPath(f.Get("id"))}
			if digest := f.Get("digest"); digest != "" {
				q.Does = append([]string{}, append(does, "Digest: "+digest)...)
			}
			if n := len(f["letter"]); n > 0 {
				q.Does = append([]string{}, append(does, fmt.Sprintf("%d chosen.", n))...)
			}
			return q, nil
		},
		do: func(ctx context.Context, d *Dashboard, f url.Values) error { return do(ctx, d, f.Get("id"), f) },
	}
}

func askTransition(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	typ, id, to := f.Get("type"), f.Get("id"), f.Get("phase")
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return nil, err
	}
	q := &question{
		Title: id + ": " + e.GetPhase() + " → " + to, Button: "Move to " + to, Input: "note", Label: "Note, for the history", Back: entityPath(typ, id),
		Does: []string{fmt.Sprintf("%s leaves the phase %s and enters %s. Everyone who watches it sees that.", id, e.GetPhase(), to)},
	}
	f.Set("if_match", e.GetEtag())
	// A dry run knows what a page cannot.
	would, err := d.cfg.Workflows.Transition(ctx, &operatorv1.TransitionRequest{Type: typ, Id: id, Phase: to, IfMatch: e.GetEtag(), DryRun: true})
	switch {
	case err != nil:
		q.Refuse = text(err)
	case would.GetEntity().GetTerminal():
		q.Danger = true
		q.Does = append(q.Does, to+" is terminal: nothing can follow, and this cannot be undone.")
	}
	q.Does = append(q.Does, "If somebody else changes it before you confirm, nothing happens and you are told.")
	return q, nil
}

func doTransition(ctx context.Context, d *Dashboard, f url.Values) error {
	_, err := d.cfg.Workflows.Transition(ctx, &operatorv1.TransitionRequest{
		Type: f.Get("type"), Id: f.Get("id"), Phase: f.Get("phase"), Note: f.Get("note"), IfMatch: f.Get("if_match"),
	})
	return err
}

func askPatch(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	typ, id, name := f.Get("type"), f.Get("id"), f.Get("field")
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return nil, err
	}
	f.Set("if_match", e.GetEtag())
	value := ""
	if v := e.GetFields().GetFields()[name]; v != nil {
		value = v.GetStringValue()
		if _, isText := v.GetKind().(*structpb.Value_StringValue); !isText {
			if text, err := v.MarshalJSON(); err == nil {
				value = string(text)
			}
		}
	}
	return &question{
		Title: "Change " + name, Button: "Change " + name, Input: "value", Label: name, Value: value, Area: len(value) > 80, Back: entityPath(typ, id),
		Does: []string{
			fmt.Sprintf("The field %s of %s gets the value below. Its phase stays.", name, id),
			"If somebody else changes it before you confirm, nothing happens and you are told.",
		},
	}, nil
}

func doPatch(ctx context.Context, d *Dashboard, f url.Values) error {
	patch := func(v *structpb.Value) error {
		_, err := d.cfg.Workflows.Patch(ctx, &operatorv1.PatchRequest{
			Type: f.Get("type"), Id: f.Get("id"), IfMatch: f.Get("if_match"),
			Fields: &structpb.Struct{Fields: map[string]*structpb.Value{f.Get("field"): v}},
		})
		return err
	}
	// A form has only texts. The current value says whether the field holds one.
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: f.Get("type"), Id: f.Get("id")})
	if err != nil {
		return err
	}
	text := f.Get("value")
	if v := e.GetFields().GetFields()[f.Get("field")]; v != nil {
		if _, isText := v.GetKind().(*structpb.Value_StringValue); !isText {
			var parsed any
			if json.NewDecoder(bytes.NewReader([]byte(text))).Decode(&parsed) == nil {
				if value, err := structpb.NewValue(parsed); err == nil {
					return patch(value)
				}
			}
		}
	}
	return patch(structpb.NewStringValue(text))
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
	if !v.Operator {
		return forbidden()
	}
	return d.question(r.Context(), v, name, s, form)
}

func (d *Dashboard) question(ctx context.Context, v *view, name string, s step, form url.Values) error {
	q, err := s.ask(ctx, d, form)
	if err != nil {
		return err
	}
	q.Action, q.Hidden = name, url.Values{}
	for _, key := range []string{"type", "id", "phase", "field", "digest", "letter", "if_match"} {
		if values, ok := form[key]; ok {
			q.Hidden[key] = values
		}
	}
	v.Page, v.Title, v.Data = "ask", q.Title, q
	v.Section = map[string]string{"transition": "workflows", "patch": "workflows", "drain": "processes", "suspend": "processes", "resume": "processes"}[name]
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
	// The service decides who may, and audits who may not.
	if err := s.do(r.Context(), d, form); err != nil {
		if !v.Operator {
			return err
		}
		given := form.Get("note") + form.Get("reason") + form.Get("value")
		if again := d.question(r.Context(), v, name, s, form); again != nil {
			return err
		}
		v.Problem, v.code = text(err), statusOf(err)
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
	case name == "drain" || name == "suspend" || name == "resume":
		back = processPath(form.Get("id"))
	default:
		back = workerPath(form.Get("id"))
	}
	v.redirect = back + "?done=" + name
	return nil
}
