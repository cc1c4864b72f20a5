package prove

import (
	"context"
	"encoding/json"
	"fmt"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// rights are all that prove needs.
var rights = []authv1.ResourceAttributes{
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

// permitted asks the API server for every permission that the proof needs. The error has
// every rule that the user lacks.
func (p *proof) permitted(ctx context.Context) error {
	var questions []any
	for _, r := range rights {
		r.Namespace = p.k.namespace
		questions = append(questions, authv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec:     authv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r},
		})
	}
	var missing []string
	err := p.k.create(ctx, func(answers *json.Decoder) error {
		var a authv1.SelfSubjectAccessReview
		if err := answers.Decode(&a); err != nil {
			return err
		}
		if r := a.Spec.ResourceAttributes; !a.Status.Allowed && r != nil {
			resource := r.Resource
			if r.Subresource != "" {
				resource += "/" + r.Subresource
			}
			missing = append(missing, fmt.Sprintf("- {apiGroups: [%q], resources: [%q], verbs: [%q]}", r.Group, resource, r.Verb))
		}
		return nil
	}, questions...)
	if err != nil || len(missing) == 0 {
		return err
	}
	f := cli.Fail(cli.ExitDenied, "you lack %d of the %d permissions that prove needs in namespace %s; a Role with these rules gives them:",
		len(missing), len(rights), p.k.namespace)
	f.Hints = missing
	return f
}
