package operator

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// workerService implements the contract's WorkerService.
type workerService struct{ s *Server }

// maxCode is the largest code in a request. Larger code has to be fetched.
const maxCode = 8 << 20

// area returns the area for hosted workers.
func (w workerService) area() (Workers, error) {
	if w.s.cfg.Workers == nil {
		return nil, notServed("hosted workers")
	}
	return w.s.cfg.Workers, nil
}

// onWorker calls a method about one worker.
func onWorker[A proto.Message](ctx context.Context, w workerService, method string, id, detail string, v violations, work func(ctx context.Context, area Workers, who string) (A, error)) (A, error) {
	return call(ctx, w.s, "WorkerService."+method, intent{target: "worker/" + id, detail: detail, scope: scopeOne, of: id}, v, func(ctx context.Context, who Principal) (answer A, err error) {
		area, err := w.area()
		if err != nil {
			return answer, err
		}
		return work(ctx, area, who.Name)
	})
}

func workerID(id string) (v violations) {
	v.text("id", id, true, maxName)
	return v
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
		if u, err := url.Parse(src.Url); err != nil || u.Host == "" || len(src.Url) > maxNote || u.Scheme != "https" && u.Scheme != "http" {
			v.add(field+".url", "is %q, want an https URL", clip(src.Url, 128))
		} else if u.User != nil {
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
	var v violations
	v.text("id", req.GetId(), false, maxName)
	v.text("mime_type", req.GetMimeType(), true, maxName)
	v.text("group", req.GetGroup(), false, maxName)
	if n := len(req.GetTopics()); n == 0 || n > maxFields {
		v.add("topics", "has %d topics, want 1 to %d", n, maxFields)
	}
	for _, t := range req.GetTopics() {
		v.text("topics", t, true, maxName)
	}
	v.text("output_topic", req.GetOutputTopic(), false, maxName)
	detail := v.code("code", req.GetCode())
	return onWorker(ctx, w, "CreateWorker", req.GetId(), req.GetMimeType()+", "+detail, v, func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.Create(ctx, req, who)
	})
}

func (w workerService) ListWorkers(ctx context.Context, req *operatorv1.ListWorkersRequest) (*operatorv1.ListWorkersResponse, error) {
	var v violations
	v.text("state", req.GetState(), false, maxName)
	v.text("group", req.GetGroup(), false, maxName)
	size := v.size("page_size", req.GetPageSize())
	list := listID(&operatorv1.ListWorkersRequest{State: req.GetState(), Group: req.GetGroup()})
	after := v.page(req.GetPageToken(), list)
	return call(ctx, w.s, "WorkerService.ListWorkers", intent{scope: scopeParts}, v, func(ctx context.Context, who Principal) (*operatorv1.ListWorkersResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		all, err := area.List(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(slices.Clone(all), func(x *operatorv1.Worker) bool {
			return !who.seesWorker(x) || req.GetState() != "" && x.GetState() != req.GetState() || req.GetGroup() != "" && x.GetGroup() != req.GetGroup()
		})
		slices.SortFunc(all, func(a, b *operatorv1.Worker) int { return strings.Compare(a.GetId(), b.GetId()) })
		page, next := pageOf(all, (*operatorv1.Worker).GetId, after, size, list)
		return &operatorv1.ListWorkersResponse{Workers: page, NextPageToken: next}, nil
	})
}

func (w workerService) GetWorker(ctx context.Context, req *operatorv1.GetWorkerRequest) (*operatorv1.Worker, error) {
	return onWorker(ctx, w, "GetWorker", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, _ string) (*operatorv1.Worker, error) {
		return area.Get(ctx, req.GetId())
	})
}

func (w workerService) StartWorker(ctx context.Context, req *operatorv1.StartWorkerRequest) (*operatorv1.Worker, error) {
	return onWorker(ctx, w, "StartWorker", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.Start(ctx, req.GetId(), who)
	})
}

func (w workerService) StopWorker(ctx context.Context, req *operatorv1.StopWorkerRequest) (*operatorv1.Worker, error) {
	return onWorker(ctx, w, "StopWorker", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.Stop(ctx, req.GetId(), who)
	})
}

func (w workerService) LoadCode(ctx context.Context, req *operatorv1.LoadCodeRequest) (*operatorv1.Worker, error) {
	v := workerID(req.GetId())
	detail := v.code("code", req.GetCode())
	return onWorker(ctx, w, "LoadCode", req.GetId(), detail, v, func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.LoadCode(ctx, req.GetId(), req.GetCode(), who)
	})
}

func (w workerService) Rollback(ctx context.Context, req *operatorv1.RollbackRequest) (*operatorv1.Worker, error) {
	v := workerID(req.GetId())
	v.digest("digest", req.GetDigest())
	return onWorker(ctx, w, "Rollback", req.GetId(), "to "+req.GetDigest(), v, func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.Rollback(ctx, req.GetId(), req.GetDigest(), who)
	})
}

func (w workerService) PromoteWorker(ctx context.Context, req *operatorv1.PromoteWorkerRequest) (*operatorv1.Worker, error) {
	return onWorker(ctx, w, "PromoteWorker", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, who string) (*operatorv1.Worker, error) {
		return area.Promote(ctx, req.GetId(), who)
	})
}

func (w workerService) DeleteWorker(ctx context.Context, req *operatorv1.DeleteWorkerRequest) (*operatorv1.DeleteWorkerResponse, error) {
	return onWorker(ctx, w, "DeleteWorker", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, who string) (*operatorv1.DeleteWorkerResponse, error) {
		return &operatorv1.DeleteWorkerResponse{}, area.Delete(ctx, req.GetId(), who)
	})
}

func (w workerService) GetWorkerHistory(ctx context.Context, req *operatorv1.GetWorkerHistoryRequest) (*operatorv1.GetWorkerHistoryResponse, error) {
	return onWorker(ctx, w, "GetWorkerHistory", req.GetId(), "", workerID(req.GetId()), func(ctx context.Context, area Workers, _ string) (*operatorv1.GetWorkerHistoryResponse, error) {
		list, err := area.History(ctx, req.GetId())
		return &operatorv1.GetWorkerHistoryResponse{Versions: list}, err
	})
}

func (w workerService) RecoverWorkers(ctx context.Context, _ *operatorv1.RecoverWorkersRequest) (*operatorv1.RecoverWorkersResponse, error) {
	return call(ctx, w.s, "WorkerService.RecoverWorkers", intent{target: "worker/*", scope: scopeFleet}, nil, func(ctx context.Context, who Principal) (*operatorv1.RecoverWorkersResponse, error) {
		area, err := w.area()
		if err != nil {
			return nil, err
		}
		return area.Recover(ctx, who.Name)
	})
}
