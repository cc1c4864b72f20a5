package kube

import (
	"context"
	"net/http"
	"time"
)

// pod is the used part of a Pod (core/v1).
type pod struct {
	Metadata struct {
		Annotations                map[string]string `json:"annotations"`
		DeletionTimestamp          string            `json:"deletionTimestamp"`
		DeletionGracePeriodSeconds *int64            `json:"deletionGracePeriodSeconds"`
	} `json:"metadata"`
	Spec struct {
		TerminationGracePeriodSeconds *int64      `json:"terminationGracePeriodSeconds"`
		Containers                    []container `json:"containers"`
	} `json:"spec"`
}

type container struct {
	Name          string `json:"name"`
	LivenessProbe *probe `json:"livenessProbe"`
	StartupProbe  *probe `json:"startupProbe"`
	Lifecycle     struct {
		PreStop *struct {
			Sleep *struct {
				Seconds int64 `json:"seconds"`
			} `json:"sleep"`
			HTTPGet *struct {
				Path string `json:"path"`
			} `json:"httpGet"`
		} `json:"preStop"`
	} `json:"lifecycle"`
}

type probe struct {
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds"`
}

// defaultContainer is the annotation that kubectl reads too.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// main returns the container with this name. Without a name it is the one that the
// annotation names, and without an annotation the first. It returns false when the pod has no
// container of that name.
func (p pod) main(name string) (container, bool) {
	if name == "" {
		name = p.Metadata.Annotations[defaultContainer]
	}
	for _, c := range p.Spec.Containers {
		if c.Name == name || name == "" {
			return c, true
		}
	}
	return container{}, false
}

func (p pod) grace() time.Duration {
	if s := p.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

// deletionGrace returns the grace with which the pod is being deleted, and whether it
// is. The kubelet gives two seconds at least (minimumGracePeriodInSeconds).
func (p pod) deletionGrace() (time.Duration, bool) {
	if p.Metadata.DeletionTimestamp == "" || p.Metadata.DeletionGracePeriodSeconds == nil {
		return 0, false
	}
	return max(time.Duration(*p.Metadata.DeletionGracePeriodSeconds)*time.Second, 2*time.Second), true
}

func (c *Client) podObject() object {
	return object{version: "v1", resource: "pods", namespace: c.cfg.Namespace, name: c.cfg.Pod}
}

// pod reads the pod that this process runs in.
func (c *Client) pod(ctx context.Context) (p pod, err error) {
	return p, c.do(ctx, http.MethodGet, "get", c.podObject(), nil, nil, &p)
}
