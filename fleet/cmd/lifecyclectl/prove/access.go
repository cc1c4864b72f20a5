package prove

import (
	"encoding/json"
	"fmt"
)

// review is a SelfSubjectAccessReview.
type review struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Attributes right `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

type right struct {
	Namespace   string `json:"namespace"`
	Verb        string `json:"verb"`
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
}

// rights are all that prove needs.
var rights = []right{
	{Group: "apps", Resource: "deployments", Verb: "get"},
	{Group: "apps", Resource: "deployments", Verb: "patch"},
	{Resource: "pods", Verb: "list"},
	{Resource: "pods", Verb: "watch"},
	{Resource: "pods", Verb: "delete"},
	{Resource: "pods", Subresource: "log", Verb: "get"},
	{Resource: "services", Verb: "list"},
	{Group: "discovery.k8s.io", Resource: "endpointslices", Verb: "list"},
	{Group: "discovery.k8s.io", Resource: "endpointslices", Verb: "watch"},
	{Group: "batch", Resource: "jobs", Verb: "create"},
	{Group: "batch", Resource: "jobs", Verb: "get"},
	{Group: "batch", Resource: "jobs", Verb: "delete"},
}

func (r right) String() string {
	resource := r.Resource
	if r.Subresource != "" {
		resource += "/" + r.Subresource
	}
	return fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [%q]}", r.Group, resource, r.Verb)
}

// missing returns an error that has every rule that the user lacks.
func missing(answers []review, namespace string) error {
	var lacks []right
	for _, a := range answers {
		if !a.Status.Allowed {
			lacks = append(lacks, a.Spec.Attributes)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	e := refuse(Denied, "you lack %d of the %d permissions that prove needs in namespace %s; a Role with these rules gives them:", len(lacks), len(answers), namespace)
	for _, r := range lacks {
		e.Hints = append(e.Hints, "- "+r.String())
	}
	return e
}

// decode reads one answer of kubectl create.
func decode(into *[]review) func(*json.Decoder) error {
	return func(d *json.Decoder) error {
		var r review
		if err := d.Decode(&r); err != nil {
			return err
		}
		*into = append(*into, r)
		return nil
	}
}
