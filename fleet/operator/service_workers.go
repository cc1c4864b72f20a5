package operator

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// workerService implements the contract's WorkerService.
type workerService struct{ s *Server }

// maxCode is the largest code in a request. Larger code has to be fetched.
const maxCode = 8 << 20

// request returns a request of a method about one worker.
func (w workerService) request(method, id string) *request {
	return w.requestAs(method, "id", id)
}

// requestAs is request for a method that has the id of the worker in another field.
func (w workerService) requestAs(method, field, id string) *request {
	c := &request{action: "WorkerService." + method, scope: scopeOne, object: id, target: "worker/" + id}
	c.text(field, id, true, maxName)
	return c
}

// code checks the form of code in a field. The host checks whether it loads.
func (v *violations) code(field string, c *operatorv1.Code) (detail string) {
	switch src := c.GetSource().(type) {
	case nil:
		v.add(field, "is missing: want content or url")
	case *operatorv1.Code_Content:
		detail = "inline code"
		if n := len(src.Content); n == 0 || n > maxCode {
			v.add(field+".content", "has %d bytes, want 1 to %d", n, maxCode)
		}
	case *operatorv1.Code_Url:
		detail = "code of " + src.Url
		switch u, err := url.Parse(src.Url); {
		case err != nil || u.Host == "" || len(src.Url) > maxNote, u.Scheme != "https" && u.Scheme != "http":
			v.add(field+".url", "is %q, want an https URL", clip(src.Url, 128))
		case u.User != nil:
			v.add(field+".url", "has a user name in it: credentials do not belong in a URL")
			detail = "code of " + u.Redacted()
		}
	}
	if c.GetDigest() != "" {
		v.digest(field+".digest", c.GetDigest())
	}
	if n := len(c.GetSignature()); n != 0 && n != ed25519.SignatureSize {
		v.add(field+".signature", "has %d bytes, want %d", n, ed25519.SignatureSize)
	}
	return detail
}

func (v *violations) digest(field, digest string) {
	raw, ok := strings.CutPrefix(digest, "sha256:")
	if b, err := hex.DecodeString(raw); !ok || err != nil || len(b) != 32 {
		v.add(field, "is %q, want sha256: and 64 hexadecimal digits", clip(digest, 80))
	}
}

func (w workerService) CreateWorker(ctx context.Context, req *operatorv1.CreateWorkerRequest) (*operatorv1.Worker, error) {
	c := &request{
		action: "WorkerService.CreateWorker",
		scope:  scopeOne,
		object: req.GetId(),
		target: "worker/" + req.GetId(),
	}
	c.text("id", req.GetId(), false, maxName)
	c.text("mime_type", req.GetMimeType(), true, maxName)
	c.text("group", req.GetGroup(), false, maxName)
	if n := len(req.GetTopics()); n == 0 || n > maxFields {
		c.add("topics", "has %d topics, want 1 to %d", n, maxFields)
	}
	for _, t := range req.GetTopics() {
		c.text("topics", t, true, maxName)
	}
	c.text("output_topic", req.GetOutputTopic(), false, maxName)
	c.detail = req.GetMimeType() + ", " + c.code("code", req.GetCode())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Create(ctx, req, c.who.Name)
	})
}

func (w workerService) ListWorkers(
	ctx context.Context, req *operatorv1.ListWorkersRequest,
) (*operatorv1.ListWorkersResponse, error) {
	c := &request{action: "WorkerService.ListWorkers", scope: scopeParts}
	c.text("state", req.GetState(), false, maxName)
	c.text("group", req.GetGroup(), false, maxName)
	page := c.paging(req)
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.ListWorkersResponse, error) {
		all, err := w.s.cfg.Workers.List(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(x *operatorv1.Worker) bool {
			otherState := req.GetState() != "" && x.GetState() != req.GetState()
			otherGroup := req.GetGroup() != "" && x.GetGroup() != req.GetGroup()
			return !c.who.seesWorker(x) || otherState || otherGroup
		})
		slices.SortFunc(all, func(a, b *operatorv1.Worker) int { return strings.Compare(a.GetId(), b.GetId()) })
		answer := &operatorv1.ListWorkersResponse{}
		answer.Workers, answer.NextPageToken = pageOf(all, (*operatorv1.Worker).GetId, page)
		return answer, nil
	})
}

func (w workerService) GetWorker(ctx context.Context, req *operatorv1.GetWorkerRequest) (*operatorv1.Worker, error) {
	return call(ctx, w.s, w.request("GetWorker", req.GetId()), func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Get(ctx, req.GetId())
	})
}

func (w workerService) StartWorker(ctx context.Context, req *operatorv1.StartWorkerRequest) (*operatorv1.Worker, error) {
	c := w.request("StartWorker", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Start(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) StopWorker(ctx context.Context, req *operatorv1.StopWorkerRequest) (*operatorv1.Worker, error) {
	c := w.request("StopWorker", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Stop(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) LoadCode(ctx context.Context, req *operatorv1.LoadCodeRequest) (*operatorv1.Worker, error) {
	c := w.request("LoadCode", req.GetId())
	c.detail = c.code("code", req.GetCode())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.LoadCode(ctx, req.GetId(), req.GetCode(), c.who.Name)
	})
}

func (w workerService) Rollback(ctx context.Context, req *operatorv1.RollbackRequest) (*operatorv1.Worker, error) {
	c := w.request("Rollback", req.GetId())
	c.digest("digest", req.GetDigest())
	c.detail = "to " + req.GetDigest()
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Rollback(ctx, req.GetId(), req.GetDigest(), c.who.Name)
	})
}

func (w workerService) PromoteWorker(ctx context.Context, req *operatorv1.PromoteWorkerRequest) (*operatorv1.Worker, error) {
	c := w.request("PromoteWorker", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.Worker, error) {
		return w.s.cfg.Workers.Promote(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) DeleteWorker(
	ctx context.Context, req *operatorv1.DeleteWorkerRequest,
) (*operatorv1.DeleteWorkerResponse, error) {
	c := w.request("DeleteWorker", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.DeleteWorkerResponse, error) {
		return &operatorv1.DeleteWorkerResponse{}, w.s.cfg.Workers.Delete(ctx, req.GetId(), c.who.Name)
	})
}

func (w workerService) GetWorkerHistory(
	ctx context.Context, req *operatorv1.GetWorkerHistoryRequest,
) (*operatorv1.GetWorkerHistoryResponse, error) {
	c := w.request("GetWorkerHistory", req.GetId())
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.GetWorkerHistoryResponse, error) {
		list, err := w.s.cfg.Workers.History(ctx, req.GetId())
		return &operatorv1.GetWorkerHistoryResponse{Versions: list}, err
	})
}

func (w workerService) RecoverWorkers(
	ctx context.Context, _ *operatorv1.RecoverWorkersRequest,
) (*operatorv1.RecoverWorkersResponse, error) {
	c := &request{action: "WorkerService.RecoverWorkers", scope: scopeFleet, target: "worker/*"}
	return call(ctx, w.s, c, func(ctx context.Context) (*operatorv1.RecoverWorkersResponse, error) {
		return w.s.cfg.Workers.Recover(ctx, c.who.Name)
	})
}
