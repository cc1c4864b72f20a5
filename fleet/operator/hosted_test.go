package operator_test

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func (h *hosted) LetterGroups(_ context.Context, id string) ([]host.LetterGroup, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.dead[id]
	if len(list) == 0 {
		return nil, nil
	}
	g := host.LetterGroup{Name: list[0].GetReason(), Reason: list[0].GetReason(), First: list[0].GetAt().AsTime(), Last: list[len(list)-1].GetAt().AsTime()}
	for _, d := range list {
		seq, err := strconv.ParseUint(d.GetId(), 10, 64)
		if err != nil {
			return nil, err
		}
		g.Seqs = append(g.Seqs, seq)
	}
	return []host.LetterGroup{g}, nil
}

func (h *hosted) DeadLetter(_ context.Context, id string, letter uint64) (*operatorv1.DeadLetter, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.dead[id] {
		if d.GetId() == fmt.Sprint(letter) {
			d = proto.CloneOf(d)
			d.Size = int64(len(d.GetData()))
			d.Headers = []*operatorv1.Header{{Name: "Lifecycle-Key", Values: []string{"8812"}}, {Name: "Traceparent", Values: []string{"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}}
			d.Message, d.DataDigest, d.Digest = "ORDERS:1742", "sha256:"+strings.Repeat("ab", 32), "sha256:"+strings.Repeat("c3", 32)
			return d, nil
		}
	}
	return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no such dead letter")
}

func (h *hosted) Code(context.Context, string, string, string) (*host.Comparison, error) {
	return &host.Comparison{
		From: host.Version{Digest: strings.Repeat("beef", 16)}, To: host.Version{Digest: strings.Repeat("c3d4", 16)}, Known: true,
		Before:   []byte("def handle(m):\n    order = m.json\n    return order['customer']\n"),
		After:    []byte("def handle(m):\n    order = m.json\n    if 'customer' not in order:\n        return None\n    return order['customer']\n"),
		Settings: []host.Difference{{Field: "limits.time", From: "2s", To: "5s"}, {Field: "secrets", To: "TOKEN"}},
	}, nil
}

func (h *hosted) Activity(context.Context, string) (*operatorv1.WorkerActivity, error) {
	return &operatorv1.WorkerActivity{
		Host: "host-2b1a", Window: durationpb.New(4*time.Minute + 40*time.Second), Succeeded: 12_400, Failed: 61,
		P50: durationpb.New(1900 * time.Microsecond), P95: durationpb.New(38 * time.Millisecond), Longest: durationpb.New(1400 * time.Millisecond),
		Versions: []*operatorv1.VersionActivity{{Digest: "sha256:" + strings.Repeat("c3d4", 16), Succeeded: 18442, Failed: 12, DeadLettered: 3}},
	}, nil
}

func (h *hosted) RedriveEdited(_ context.Context, _ string, letter uint64, data []byte) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.was = fmt.Sprintf("edited %d: %s", letter, data)
	return nil, nil
}

func (h *hosted) Discard(_ context.Context, _ string, letters []uint64, dryRun bool) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !dryRun {
		h.was = "discarded " + strings.Trim(fmt.Sprint(letters), "[]")
	}
	return len(letters), nil
}

func (h *hosted) did() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.was
}

func (h *hosted) Promote(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	w := h.list[id]
	w.Digest, w.Canary = w.GetCanary().GetDigest(), nil
	h.mu.Unlock()
	return h.Get(ctx, id)
}

// Commands to copy quote the ids in them: a type of workflow may have any text.
func TestCommandsOfPagesAreQuoted(t *testing.T) {
	const id, quoted = "x; echo y", "&#39;x; echo y&#39;"
	h := newHosted()
	h.list[id] = proto.CloneOf(h.list["notify"])
	h.dead[id] = []*operatorv1.DeadLetter{{Id: "7", Data: make([]byte, 1<<20)}}
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Workers: h})
	path := base + "/ui/workers/" + url.PathEscape(id)
	for page, want := range map[string]string{
		path + "/deadletters":   "lifecyclectl dead-letters " + quoted + " --by-reason",
		path + "/deadletters/7": "lifecyclectl dead-letters " + quoted + " 7",
		path + "/diff":          "lifecyclectl workers diff " + quoted + " --from ",
		base + "/ui/act/edit?letter=7&id=" + url.QueryEscape(id): "lifecyclectl redrive " + quoted + " 7 --data-file FILE",
	} {
		if code, _, text := request(t, "GET", page, ""); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d, without %s\n%.2000s", page, code, want, text)
		}
	}
}
