package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
)

// callIn bounds one call of kubectl, and cleanIn the calls that put back what a proof
// has changed.
const (
	callIn  = 20 * time.Second
	cleanIn = 45 * time.Second
)

// kubectl is the way to the cluster. It already knows every way to sign in, the
// proxies and the contexts of its user.
type kubectl struct {
	flags     []string
	namespace string
	limit     time.Duration // of one call
}

func (k *kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append(append([]string{}, k.flags...), "--namespace", k.namespace)
	cmd := exec.CommandContext(ctx, "kubectl", append(all, args...)...)
	cmd.WaitDelay = time.Second // a helper of kubectl may keep its pipes
	return cmd
}

// run runs kubectl and returns its output.
func (k *kubectl) run(ctx context.Context, stdin io.Reader, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, k.limit)
	defer cancel()
	cmd := k.command(ctx, args...)
	ownGroup(cmd)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, k.explain(ctx, args, stderr.String(), err)
	}
	return stdout.Bytes(), nil
}

// explain turns kubectl's error into an error that says what to do.
func (k *kubectl) explain(ctx context.Context, args []string, stderr string, err error) error {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	said := lines[len(lines)-1]
	what := "kubectl " + strings.Join(args, " ")
	has := func(words ...string) bool { // then said is the line that has one
		i := slices.IndexFunc(lines, func(line string) bool {
			return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) })
		})
		if i >= 0 {
			said = lines[i]
		}
		said = strings.TrimSpace(strings.TrimPrefix(said, "error: "))
		return i >= 0
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return cli.Fail(cli.ExitUsage, "there is no kubectl in PATH: prove asks the cluster through it")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cli.Fail(cli.ExitUnreachable, "%s did not answer within %v: %s", k.server(ctx), k.limit, strings.TrimSuffix(what+": "+said, ": "))
	case ctx.Err() != nil:
		return context.Canceled
	case has("(NotFound)"):
		return cli.Fail(cli.ExitNotFound, "%s", strings.TrimPrefix(said, "Error from server (NotFound): "))
	case has("(Forbidden)"):
		return cli.Fail(cli.ExitDenied, "%s", strings.TrimPrefix(said, "Error from server (Forbidden): "))
	case has("(Unauthorized)", "must be logged in"):
		return cli.Fail(cli.ExitDenied, "the API server does not accept the credentials: %s", said)
	case has("getting credentials"):
		return cli.Fail(cli.ExitDenied, "kubectl cannot sign in: %s", said)
	case has("Unable to connect", "connection refused", "was refused", "i/o timeout", "context deadline exceeded",
		"TLS handshake", "no such host", "EOF"):
		return cli.Fail(cli.ExitUnreachable, "%s does not answer: %s", k.server(ctx), said)
	case said == "":
		return cli.Fail(cli.ExitFindings, "%s: %v", what, err)
	}
	return cli.Fail(cli.ExitFindings, "%s: %s", what, said)
}

// server names the API server with its address, when kubectl knows one.
func (k *kubectl) server(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	out, err := k.command(ctx, "config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}").Output()
	if at := strings.TrimSpace(string(out)); err == nil && at != "" {
		return "the API server at " + at
	}
	return "the API server"
}

// get reads objects into o.
func (k *kubectl) get(ctx context.Context, o any, args ...string) error {
	out, err := k.run(ctx, nil, append([]string{"get", "--output", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, o); err != nil {
		return cli.Fail(cli.ExitFindings, "kubectl get %s: %v", strings.Join(args, " "), err)
	}
	return nil
}

// create creates the objects and calls took with each answer.
func (k *kubectl) create(ctx context.Context, took func(*json.Decoder) error, objects ...any) error {
	var in bytes.Buffer
	for _, o := range objects {
		if err := json.NewEncoder(&in).Encode(o); err != nil {
			return fmt.Errorf("encode an object: %w", err)
		}
	}
	// Without validation: it would need rights to list the cluster's own types.
	out, err := k.run(ctx, &in, "create", "--validate=false", "--output", "json", "--filename", "-")
	if err != nil {
		return err
	}
	answers := json.NewDecoder(bytes.NewReader(out))
	for range objects {
		if err := took(answers); err != nil {
			return cli.Fail(cli.ExitFindings, "kubectl create: %v", err)
		}
	}
	return nil
}

// follow starts kubectl and calls take with a decoder of its output until that
// returns an error. It returns when kubectl has ended; the error is only kubectl's.
func (k *kubectl) follow(ctx context.Context, take func(*json.Decoder) error, args ...string) error {
	return k.stream(ctx, func(out io.Reader) {
		lines := json.NewDecoder(out)
		for take(lines) == nil {
		}
	}, args...)
}

// stream starts kubectl and calls read with its output. It returns when kubectl has ended.
func (k *kubectl) stream(ctx context.Context, read func(io.Reader), args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := k.command(ctx, args...)
	ownGroup(cmd)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return k.explain(ctx, args, "", err)
	}
	read(out)
	asked := ctx.Err() != nil
	cancel()
	if err := cmd.Wait(); err != nil && !asked && stderr.Len() > 0 {
		return k.explain(context.WithoutCancel(ctx), args, stderr.String(), err)
	}
	return nil
}

// rights returns all that prove needs for a workload of that kind.
func rights(resource string) []authv1.ResourceAttributes {
	kind := strings.TrimSuffix(resource, ".apps")
	return []authv1.ResourceAttributes{
		{Group: "apps", Resource: kind, Verb: "get"},
		{Group: "apps", Resource: kind, Verb: "patch"},
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
}

// permitted asks the API server for every permission that the proof needs. The error has
// every rule that the user lacks.
func (p *proof) permitted(ctx context.Context, resource string) error {
	needed := rights(resource)
	var questions []any
	for _, r := range needed {
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
		len(missing), len(needed), p.k.namespace)
	f.Hints = missing
	return f
}
