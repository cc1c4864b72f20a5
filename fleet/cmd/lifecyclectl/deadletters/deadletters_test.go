package deadletters

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// many is a server with 25 dead letters.
type many struct {
	operatorv1connect.WorkerServiceClient
}

func (many) ListDeadLetters(context.Context, *operatorv1.ListDeadLettersRequest) (*operatorv1.ListDeadLettersResponse, error) {
	answer := new(operatorv1.ListDeadLettersResponse)
	for i := range 25 {
		answer.DeadLetters = append(answer.DeadLetters, &operatorv1.DeadLetter{Id: fmt.Sprint(i)})
	}
	return answer, nil
}

// A hook runs within the call that redrives its dead letters, and a call has 15 s.
func TestHooksAreRedrivenFewAtATime(t *testing.T) {
	for worker, want := range map[string][]int{"thumbs": {25}, "survey/notify": {10, 10, 5}} {
		cmd := redrive()
		cmd.SetContext(t.Context())
		cmd.SetErr(io.Discard)
		c := &cli.Call{Command: cmd, Args: []string{worker}, Server: &cli.Server{Client: &client.Client{Workers: many{}}}}
		var parts []int
		total, err := (&selection{all: true}).each(c, "", "redriving", "redriven", func(ids []string) (int64, error) {
			parts = append(parts, len(ids))
			return int64(len(ids)), nil
		})
		if total != 25 || err != nil || !slices.Equal(parts, want) {
			t.Errorf("%s: %d in parts of %v, %v; want %v", worker, total, parts, err, want)
		}
	}
}
