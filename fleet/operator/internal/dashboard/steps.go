package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

var steps = map[string]step{
	"transition": {askTransition, doTransition},
	"patch":      {askPatch, doPatch},
	"drain": onProcess(question{Title: "Drain", Danger: true, Button: "Drain this process", Input: "reason", Label: "Reason", Does: []string{
		"Its readiness goes down, and the cluster sends new work elsewhere.",
		"What is in flight is finished within its drain window and shutdown grace.",
		"Then the process ends, for good. Its supervisor, such as Kubernetes, starts another in its place.",
	}}, func(ctx context.Context, d *Dashboard, id, reason string) error {
		_, err := d.cfg.Processes.DrainProcess(ctx, &operatorv1.DrainProcessRequest{Id: id, Reason: reason})
		return err
	}),
	"suspend": onProcess(question{Title: "Suspend", Button: "Suspend readiness", Input: "reason", Label: "Reason", Needed: true, Does: []string{
		"Its readiness goes down until it is resumed, and the cluster sends new work elsewhere.",
		"Nothing stops: the process goes on working.",
	}}, func(ctx context.Context, d *Dashboard, id, reason string) error {
		_, err := d.cfg.Processes.SuspendProcess(ctx, &operatorv1.SuspendProcessRequest{Id: id, Reason: reason})
		return err
	}),
	"resume": onProcess(question{Title: "Resume", Button: "Resume readiness", Does: []string{
		"Its readiness follows its checks again, and the cluster sends work here when they pass.",
	}}, func(ctx context.Context, d *Dashboard, id, _ string) error {
		_, err := d.cfg.Processes.ResumeProcess(ctx, &operatorv1.ResumeProcessRequest{Id: id})
		return err
	}),
	"restart-unit": {askRestartUnit, doRestartUnit},
	"start": onWorker(question{Title: "Start", Button: "Feed this worker", Does: []string{
		"The worker gets messages again, from where it stopped. Messages that arrived in between come first.",
	}}, func(ctx context.Context, d *Dashboard, id string) error {
		_, err := d.cfg.Workers.StartWorker(ctx, &operatorv1.StartWorkerRequest{Id: id})
		return err
	}),
	"stop": onWorker(question{Title: "Stop", Button: "Stop this worker", Does: []string{
		"The worker finishes its current message and gets no other.",
		"Messages wait for it until it is started again. Nothing is lost.",
	}}, func(ctx context.Context, d *Dashboard, id string) error {
		_, err := d.cfg.Workers.StopWorker(ctx, &operatorv1.StopWorkerRequest{Id: id})
		return err
	}),
	"delete": onWorker(question{Title: "Delete", Button: "Delete this worker for good", Danger: true, Does: []string{
		"The worker finishes its current message.",
		"Then its subscription, its record and its code are removed. This cannot be undone.",
	}}, func(ctx context.Context, d *Dashboard, id string) error {
		_, err := d.cfg.Workers.DeleteWorker(ctx, &operatorv1.DeleteWorkerRequest{Id: id})
		return err
	}),
	"rollback": {askRollback, doRollback},
	"redrive":  {askRedrive, doRedrive},
	"edit":     {askEdit, doEdit},
	"discard":  {askDiscard, doDiscard},
	"promote": onWorker(question{Title: "Promote the canary of", Button: "Give it every message", Does: []string{
		"The canary becomes the worker's version, between two messages, and gets every message.",
		"The version before it stays in the list: you can roll back to it.",
	}}, func(ctx context.Context, d *Dashboard, id string) error {
		_, err := d.cfg.Workers.PromoteWorker(ctx, &operatorv1.PromoteWorkerRequest{Id: id})
		return err
	}),
	"recover": {askRecover, doRecover},
}

// onProcess returns an action on one process, with the question q.
func onProcess(q question, do func(ctx context.Context, d *Dashboard, id, reason string) error) step {
	return step{
		ask: func(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
			p, err := d.cfg.Processes.GetProcess(ctx, &operatorv1.GetProcessRequest{Id: f.Get("id")})
			if err != nil {
				return nil, err
			}
			q := q
			q.Of, q.Title, q.Back = p.GetId(), q.Title+" "+p.GetId(), processPath(p.GetId())
			return &q, nil
		},
		do: func(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
			return nil, do(ctx, d, f.Get("id"), f.Get("reason"))
		},
	}
}

// onWorker returns an action on one hosted worker, with the question q.
func onWorker(q question, do func(ctx context.Context, d *Dashboard, id string) error) step {
	return step{
		ask: func(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
			return q.about(ctx, d, f.Get("id"))
		},
		do: func(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
			return nil, do(ctx, d, f.Get("id"))
		},
	}
}

// about returns the question about one hosted worker, which must exist.
func (q question) about(ctx context.Context, d *Dashboard, id string) (*question, error) {
	w, err := d.cfg.Workers.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: id})
	if err != nil {
		return nil, err
	}
	q.Of, q.Title, q.Back = w.GetId(), q.Title+" "+w.GetId(), workerPath(w.GetId())
	return &q, nil
}

func askRollback(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	w, err := d.cfg.Workers.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: f.Get("id")})
	if err == nil && w.GetCanary() != nil && w.GetDigest() == f.Get("digest") {
		return question{Title: "End the canary of", Button: "Give it no more messages", Does: []string{
			"The canary " + digest(w.GetCanary().GetDigest()) + " gets no more messages. The worker's own version " + digest(w.GetDigest()) + " gets all of them.",
			"Its code stays in the list of versions.",
		}}.about(ctx, d, f.Get("id"))
	}
	return question{Title: "Roll back", Button: "Run the earlier code", Does: []string{
		"The worker changes to the code with the digest " + digest(f.Get("digest")) + ", between two messages. Each message is handled by one version.",
		"Its versions stay: you can roll forward in the same way.",
	}}.about(ctx, d, f.Get("id"))
}

func doRollback(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
	_, err := d.cfg.Workers.Rollback(ctx, &operatorv1.RollbackRequest{Id: f.Get("id"), Digest: f.Get("digest")})
	return nil, err
}

func askRedrive(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	ids, all, group := chosen(f)
	which := fmt.Sprintf("%d dead letters go", len(ids))
	switch {
	case all:
		which = "All dead letters go"
	case group != "":
		which = "All dead letters with this reason go"
	case len(ids) == 1:
		which = "One dead letter goes"
	}
	q, err := question{Title: "Redrive dead letters of", Button: "Hand them to the worker again", Does: []string{
		which + " to the worker once more, each with all its attempts.",
		"Those that fail again come back to the dead letters.",
	}}.about(ctx, d, f.Get("id"))
	switch {
	case err != nil:
	case group != "":
		q.Does = append(q.Does, "The reason is: "+group)
	case len(ids) == 0 && !all:
		q.Refuse = "no dead letter is chosen. Go back and choose some, or redrive all."
	}
	return q, err
}

func doRedrive(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
	ids, all, group := chosen(f)
	answer, err := d.cfg.Workers.Redrive(ctx, &operatorv1.RedriveRequest{WorkerId: f.Get("id"), Ids: ids, All: all, Group: group})
	return url.Values{"n": {strconv.FormatInt(answer.GetRedriven(), 10)}}, err
}

func askRecover(context.Context, *Dashboard, url.Values) (*question, error) {
	return &question{Title: "Recover workers", Of: "Hosted workers", Button: "Recover workers", Back: "/ui/workers", Does: []string{
		"Every stored worker that should run and does not is loaded and gets messages again.",
		"One that fails does not stop the others.",
	}}, nil
}

func doRecover(ctx context.Context, d *Dashboard, _ url.Values) (url.Values, error) {
	answer, err := d.cfg.Workers.RecoverWorkers(ctx, &operatorv1.RecoverWorkersRequest{})
	return url.Values{"n": {strconv.Itoa(len(answer.GetRecovered()))}, "failed": {strconv.Itoa(len(answer.GetFailures()))}}, err
}

func askTransition(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	typ, id, to := f.Get("type"), f.Get("id"), f.Get("phase")
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return nil, err
	}
	q := &question{
		Title: e.GetPhase() + " → " + to, Of: id, Button: "Move to " + to, Input: "note", Label: "Note, for the history", Back: entityPath(typ, id),
		Does: []string{fmt.Sprintf("%s leaves the phase %s and enters %s. All its watchers see that.", id, e.GetPhase(), to)},
	}
	f.Set("if_match", e.GetEtag())
	// A dry run checks what the page cannot.
	would, err := d.cfg.Workflows.Transition(ctx, &operatorv1.TransitionRequest{Type: typ, Id: id, Phase: to, IfMatch: e.GetEtag(), DryRun: true})
	switch {
	case err != nil:
		q.Refuse = text(err)
	case would.GetEntity().GetTerminal():
		q.Danger = true
		q.Does = append(q.Does, to+" is terminal: no other phase comes after it, and this cannot be undone.")
	}
	q.Does = append(q.Does, "If it changes before you confirm, nothing happens and the page says so.")
	return q, nil
}

func doTransition(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
	_, err := d.cfg.Workflows.Transition(ctx, &operatorv1.TransitionRequest{
		Type: f.Get("type"), Id: f.Get("id"), Phase: f.Get("phase"), Note: f.Get("note"), IfMatch: f.Get("if_match"),
	})
	return nil, err
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
		Title: "Change " + name, Of: id, Button: "Change " + name, Input: "value", Label: name, Value: value, Area: len(value) > 80, Back: entityPath(typ, id),
		Does: []string{
			fmt.Sprintf("The field %s of %s gets the value below. Its phase stays.", name, id),
			"If it changes before you confirm, nothing happens and the page says so.",
		},
	}, nil
}

func doPatch(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
	patch := func(v *structpb.Value) (url.Values, error) {
		_, err := d.cfg.Workflows.Patch(ctx, &operatorv1.PatchRequest{
			Type: f.Get("type"), Id: f.Get("id"), IfMatch: f.Get("if_match"),
			Fields: &structpb.Struct{Fields: map[string]*structpb.Value{f.Get("field"): v}},
		})
		return nil, err
	}
	// A form sends only texts. The current value shows whether the field is one.
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: f.Get("type"), Id: f.Get("id")})
	if err != nil {
		return nil, err
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
