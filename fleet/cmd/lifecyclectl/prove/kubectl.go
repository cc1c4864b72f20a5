package prove

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

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
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, k.explain(ctx, args, stderr.String(), err)
	}
	return stdout.Bytes(), nil
}

// explain turns kubectl's error into an error with an exit status.
func (k *kubectl) explain(ctx context.Context, args []string, stderr string, err error) error {
	said := strings.TrimSpace(stderr)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(said, w) })
	}
	what := fmt.Sprintf("kubectl -n %s %s", k.namespace, strings.Join(args, " "))
	status := cli.ExitFindings
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return cli.Fail(cli.ExitUsage, "there is no kubectl in PATH: prove asks the cluster through it")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cli.Fail(cli.ExitUnreachable, "the API server did not answer within %v: %s: %s", k.limit, what, said)
	case ctx.Err() != nil:
		return context.Canceled
	case has("(NotFound)"):
		status = cli.ExitNotFound
	case has("(Forbidden)", "(Unauthorized)", "must be logged in", "getting credentials"):
		status = cli.ExitDenied
	case has("Unable to connect", "connection refused", "was refused", "i/o timeout", "context deadline exceeded",
		"TLS handshake", "no such host", "EOF"):
		status = cli.ExitUnreachable
	}
	return cli.Fail(status, "%s: %s", what, cmp.Or(said, err.Error()))
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

// create creates the object.
func (k *kubectl) create(ctx context.Context, o any) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode an object: %w", err)
	}
	// Without validation: it would need rights to list the cluster's own types.
	_, err = k.run(ctx, bytes.NewReader(text), "create", "--validate=false", "--filename", "-")
	return err
}

// stream starts kubectl and calls read with its output. It returns when kubectl has ended.
func (k *kubectl) stream(ctx context.Context, read func(io.Reader), args ...string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := k.command(ctx, args...)
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

// lastLine returns the last line that a container has logged. flag is --follow, which waits for its
// end, --previous or "".
func (k *kubectl) lastLine(ctx context.Context, pod, container, flag string) (said string) {
	args := []string{"logs", "--container", container, "--tail=1", pod}
	if flag != "" {
		args = append(args, flag)
	}
	_ = k.stream(ctx, func(out io.Reader) { // a log that is gone proves nothing
		for in := bufio.NewScanner(out); in.Scan(); {
			said = cmp.Or(lastLine(in.Text()), said)
		}
	}, args...)
	return said
}
