package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// hosted are hosted workers in memory. Nothing joins a real host to an operator
// server yet; what this command line is tested for is what it asks and shows.
type hosted struct {
	mu       sync.Mutex // guards everything that follows
	workers  map[string]*operatorv1.Worker
	versions map[string][]*operatorv1.CodeVersion
	letters  map[string][]*operatorv1.DeadLetter
	redriven int
	fails    int // redrives after this many fail; 0 is never
}

func newHosted() *hosted {
	return &hosted{workers: map[string]*operatorv1.Worker{}, versions: map[string][]*operatorv1.CodeVersion{}, letters: map[string][]*operatorv1.DeadLetter{}}
}

// die gives a worker n dead letters.
func (h *hosted) die(id string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range n {
		h.letters[id] = append(h.letters[id], &operatorv1.DeadLetter{
			Id: fmt.Sprintf("%08d", len(h.letters[id])+1), WorkerId: id, Topic: "images.new", Reason: "exit status 3\x1b[2J", Attempts: 5, Size: int64(100 + i), At: timestamppb.Now(),
		})
	}
}

func digest(code []byte) string {
	sum := sha256.Sum256(code)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (h *hosted) getLocked(id string) (*operatorv1.Worker, error) {
	w := h.workers[id]
	if w == nil {
		return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "there is no worker %q", id)
	}
	return w, nil
}

func (h *hosted) loadLocked(w *operatorv1.Worker, d string, source, who string) {
	for _, v := range h.versions[w.GetId()] {
		v.Current = false
	}
	w.Digest = d
	h.versions[w.GetId()] = append(h.versions[w.GetId()], &operatorv1.CodeVersion{Digest: d, Source: source, Who: who, At: timestamppb.Now(), Current: true})
}

func (h *hosted) Create(_ context.Context, req *operatorv1.CreateWorkerRequest, who string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.workers[req.GetId()] != nil {
		return nil, operator.Errorf(connect.CodeAlreadyExists, operator.ReasonExists, "id", "there is a worker %q already", req.GetId())
	}
	w := &operatorv1.Worker{Id: req.GetId(), MimeType: req.GetMimeType(), Topics: req.GetTopics(), Group: req.GetGroup(), State: "running", Desired: "running", CreatedAt: timestamppb.Now()}
	h.workers[w.GetId()] = w
	h.loadLocked(w, digest(req.GetCode().GetContent()), cmp.Or(req.GetCode().GetUrl(), "inline"), who)
	return proto.CloneOf(w), nil
}

func (h *hosted) List(context.Context) (all []*operatorv1.Worker, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.workers {
		all = append(all, proto.CloneOf(w))
	}
	return all, nil
}

func (h *hosted) Get(_ context.Context, id string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, err := h.getLocked(id)
	return proto.CloneOf(w), err
}

func (h *hosted) set(id, state string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, err := h.getLocked(id)
	if err == nil {
		w.State, w.Desired = state, state
	}
	return proto.CloneOf(w), err
}

func (h *hosted) Start(_ context.Context, id, _ string) (*operatorv1.Worker, error) {
	return h.set(id, "running")
}

func (h *hosted) Stop(_ context.Context, id, _ string) (*operatorv1.Worker, error) {
	return h.set(id, "stopped")
}

func (h *hosted) LoadCode(_ context.Context, id string, code *operatorv1.Code, who string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, err := h.getLocked(id)
	if err == nil {
		h.loadLocked(w, digest(code.GetContent()), "inline", who)
	}
	return proto.CloneOf(w), err
}

func (h *hosted) Rollback(_ context.Context, id, to, who string) (*operatorv1.Worker, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, err := h.getLocked(id)
	if err == nil {
		h.loadLocked(w, to, "rollback", who)
	}
	return proto.CloneOf(w), err
}

func (h *hosted) Delete(_ context.Context, id, _ string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.getLocked(id)
	delete(h.workers, id)
	return err
}

func (h *hosted) History(_ context.Context, id string) ([]*operatorv1.CodeVersion, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.getLocked(id)
	return h.versions[id], err
}

func (h *hosted) Recover(context.Context, string) (*operatorv1.RecoverWorkersResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := &operatorv1.RecoverWorkersResponse{}
	for id, w := range h.workers {
		if w.GetState() == "failed" {
			answer.Failures = append(answer.Failures, &operatorv1.RecoverWorkersResponse_Failure{Id: id, Error: "the code is gone"})
		} else {
			answer.Recovered = append(answer.Recovered, id)
		}
	}
	slices.Sort(answer.Recovered)
	return answer, nil
}

func (h *hosted) DeadLetters(_ context.Context, id, after string, limit int) (page []*operatorv1.DeadLetter, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.letters[id] {
		if d.GetId() > after && len(page) < limit {
			page = append(page, d)
		}
	}
	return page, nil
}

func (h *hosted) Redrive(_ context.Context, id string, ids []string, _ string) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fails > 0 && h.redriven >= h.fails {
		return 0, operator.Errorf(connect.CodeUnavailable, operator.ReasonUnavailable, "", "the stream cannot be had now")
	}
	var n int64
	h.letters[id] = slices.DeleteFunc(h.letters[id], func(d *operatorv1.DeadLetter) bool {
		if !slices.Contains(ids, d.GetId()) {
			return false
		}
		n++
		return true
	})
	h.redriven += int(n)
	return n, nil
}
