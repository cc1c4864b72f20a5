package dashboard

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// changedMeanwhile is a sentence of each action on an entity.
const changedMeanwhile = "If it changes before you confirm, nothing happens and the page says so."

func askTransition(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	typ, id, to := form.Get("type"), form.Get("id"), form.Get("phase")
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return err
	}
	form.Set("if_match", e.GetEtag())
	q.Title, q.Button = e.GetPhase()+" → "+to, "Move to "+to
	q.Does = []string{fmt.Sprintf("%s leaves the phase %s and enters %s. All its watchers see that.", id, e.GetPhase(), to)}
	// A dry run checks what the page cannot.
	would, err := d.cfg.Workflows.Transition(ctx, &operatorv1.TransitionRequest{
		Type:    typ,
		Id:      id,
		Phase:   to,
		IfMatch: e.GetEtag(),
		DryRun:  true,
	})
	switch {
	case err != nil:
		q.Refuse = client.Message(err)
	case would.GetEntity().GetTerminal():
		q.Danger = true
		q.Does = append(q.Does, to+" is terminal: no other phase comes after it, and this cannot be undone.")
	}
	q.Does = append(q.Does, changedMeanwhile)
	return nil
}

// fieldOf returns the value of a field, and whether it is a text or there is none.
func fieldOf(e *operatorv1.Entity, name string) (value *structpb.Value, isText bool) {
	value = e.GetFields().GetFields()[name]
	_, isText = value.GetKind().(*structpb.Value_StringValue)
	return value, isText || value == nil
}

func askPatch(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	id, name := form.Get("id"), form.Get("field")
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: form.Get("type"), Id: id})
	if err != nil {
		return err
	}
	form.Set("if_match", e.GetEtag())
	value, isText := fieldOf(e, name)
	q.Value = value.GetStringValue()
	if !isText {
		if text, err := value.MarshalJSON(); err == nil {
			q.Value = string(text)
		}
	}
	q.Title, q.Button = "Change "+name, "Change "+name
	q.Input.Label, q.Input.Lines = name, len(q.Value) > 80
	q.Does = []string{fmt.Sprintf("The field %s of %s gets the value below. Its phase stays.", name, id), changedMeanwhile}
	return nil
}

func doPatch(ctx context.Context, d *Dashboard, form url.Values) ([]int, error) {
	e, err := d.cfg.Workflows.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: form.Get("type"), Id: form.Get("id")})
	if err != nil {
		return nil, err
	}
	// A form sends only texts. The current value shows whether the field is one. A field that is
	// none is read as JSON, when the whole input is one value.
	value := structpb.NewStringValue(form.Get("value"))
	if _, isText := fieldOf(e, form.Get("field")); !isText {
		var parsed any
		if json.Unmarshal([]byte(form.Get("value")), &parsed) == nil {
			if v, err := structpb.NewValue(parsed); err == nil {
				value = v
			}
		}
	}
	_, err = d.cfg.Workflows.Patch(ctx, &operatorv1.PatchRequest{
		Type:    form.Get("type"),
		Id:      form.Get("id"),
		IfMatch: form.Get("if_match"),
		Fields:  &structpb.Struct{Fields: map[string]*structpb.Value{form.Get("field"): value}},
	})
	return nil, err
}

func askRestartUnit(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	p, err := d.cfg.Processes.GetProcess(ctx, &operatorv1.GetProcessRequest{Id: form.Get("id")})
	if err != nil {
		return err
	}
	path := form.Get("unit")
	q.Title = "Restart " + path
	q.Does = []string{
		fmt.Sprintf("The present run of the unit %s is asked to end, and the next one begins when it has.", path),
		"The process goes on, and so do its other units. The restart does not count against the unit's restart budget.",
	}
	switch u := unitAt(p.GetUnits(), path); {
	case u == nil:
		q.Refuse = "the process has no such unit."
	case !u.GetRestartable():
		q.Refuse = fmt.Sprintf("it is a %s, it is %s, and the process is %s. "+
			"Only a supervised unit of a running process can be restarted, and not while it stops.",
			u.GetKind(), u.GetStatus(), p.GetPhase())
	}
	return nil
}

func askRollback(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	w, err := d.cfg.Workers.GetWorker(ctx, &operatorv1.GetWorkerRequest{Id: form.Get("id")})
	if err != nil {
		return err
	}
	to := form.Get("digest")
	if w.GetCanary() != nil && w.GetDigest() == to {
		q.Title, q.Button = "End the canary of "+w.GetId(), "Give it no more messages"
		q.Does = []string{
			fmt.Sprintf("The canary %s gets no more messages. The worker's own version %s gets all of them.",
				digest(w.GetCanary().GetDigest()), digest(to)),
			"Its code stays in the list of versions.",
		}
		return nil
	}
	q.Button = "Run the earlier code"
	q.Does = []string{
		"The worker changes to the code with the digest " + digest(to) + ", between two messages. " +
			"Each message is handled by one version.",
		"Its versions stay: you can roll forward in the same way.",
	}
	return nil
}

// chosen returns the dead letters that a form chooses: all of them, or else a group, or else
// single ones. It also removes from the form what is not chosen, so that the confirmation repeats
// only the choice.
func chosen(form url.Values) (ids []string, all bool, group string) {
	if all = form.Get("all") != ""; all {
		form.Del("letter")
		form.Del("group")
		return nil, true, ""
	}
	if form.Get("chosen") != "" { // a button for the chosen ones, on the page of a group
		form.Del("group")
	}
	if group = form.Get("group"); group != "" {
		form.Del("letter")
		return nil, false, group
	}
	return form["letter"], false, ""
}

func askRedrive(_ context.Context, _ *Dashboard, form url.Values, q *question) error {
	ids, all, group := chosen(form)
	which := fmt.Sprintf("%d dead letters go", len(ids))
	switch {
	case all:
		which = "All dead letters go"
	case group != "":
		which = "All dead letters with this reason go"
	case len(ids) == 1:
		which = "One dead letter goes"
	case len(ids) == 0:
		q.Refuse = "no dead letter is chosen. Go back and choose some, or redrive all."
	}
	q.Does = []string{
		which + " to the worker once more, each with all its attempts.",
		"Those that fail again come back to the dead letters.",
	}
	if group != "" {
		q.Does = append(q.Does, "The reason is: "+group)
	}
	return nil
}

func askDiscard(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	ids, all, group := chosen(form)
	q.Back = lettersPath(form.Get("id"), group)
	if len(ids) == 0 && !all && group == "" {
		q.Refuse = "no dead letter is chosen. Go back and choose some, or discard all."
		return nil
	}
	would, err := d.cfg.Workers.DiscardDeadLetters(ctx, &operatorv1.DiscardDeadLettersRequest{
		WorkerId: form.Get("id"),
		Ids:      ids,
		All:      all,
		Group:    group,
		DryRun:   true,
	})
	if err != nil {
		return err
	}
	n := would.GetDiscarded()
	q.Does = []string{
		fmt.Sprintf("%d dead %s removed, with the whole message. This cannot be undone.", n, plural(n, "letter is", "letters are")),
		"The worker never handles them.",
	}
	if group != "" {
		q.Does = append(q.Does, "They are those whose reason is: "+group)
	}
	if n == 0 {
		q.Refuse = "none of these dead letters is there any more."
	}
	return nil
}

func askEdit(ctx context.Context, d *Dashboard, form url.Values, q *question) error {
	worker := form.Get("id")
	m, err := d.cfg.Workers.ReadDeadLetter(ctx, &operatorv1.ReadDeadLetterRequest{
		WorkerId: worker,
		Id:       form.Get("letter"),
		Limit:    maxForm,
	})
	if err != nil {
		return err
	}
	q.Title, q.Of, q.Back = "Edit dead letter "+m.GetId(), m.GetId(), letterPath(worker, m.GetId())
	q.Does = []string{
		"The message below goes to " + worker + " in place of this one, " +
			"with the same topic, key and headers, and with all attempts.",
		"The dead letter is gone then. If it fails again, the edited message becomes a dead letter.",
		"The audit gets the digests of the message before and after. " +
			"If another operator redrives it first, nothing happens and the page says so.",
	}
	switch {
	case m.GetSize() > maxForm:
		q.Refuse = fmt.Sprintf("the message has %d bytes, and a form takes at most %d. Download it, and use: %s",
			m.GetSize(), maxForm, diagnosis.Command("redrive %s %s --data-file FILE", worker, m.GetId()))
	case asText(m.GetData()):
		q.Value = string(m.GetData())
		form.Set("as", "text")
	default:
		q.Value, q.Input.Label = hex.EncodeToString(m.GetData()), "Message, in hexadecimal"
		form.Set("as", "hex")
	}
	return nil
}

func doEdit(ctx context.Context, d *Dashboard, form url.Values) ([]int, error) {
	data := []byte(strings.ReplaceAll(form.Get("value"), "\r\n", "\n"))
	switch form.Get("as") {
	case "text":
	case "hex":
		var err error
		if data, err = hex.DecodeString(strings.Join(strings.Fields(form.Get("value")), "")); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the message is not hexadecimal: %w", err))
		}
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the form does not say how the message is written"))
	}
	_, err := d.cfg.Workers.RedriveEdited(ctx, &operatorv1.RedriveEditedRequest{
		WorkerId: form.Get("id"),
		Id:       form.Get("letter"),
		Data:     data,
	})
	return nil, err
}
