package operator

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// A failure of a recovery whose text is not UTF-8 is in the answer.
func TestFailureThatIsNotUTF8(t *testing.T) {
	for text, want := range map[string]*operatorv1.RecoverWorkersResponse_Failure{
		"worker w: no \xff":    {Id: "w", Error: "no \uFFFD"},
		"worker \xff: no code": {Id: "\uFFFD", Error: "no code"},
		"\xff\xfe":             {Error: "\uFFFD"},
	} {
		got := failure(errors.New(text))
		if _, err := proto.Marshal(&operatorv1.RecoverWorkersResponse{Failures: []*operatorv1.RecoverWorkersResponse_Failure{got}}); err != nil || !proto.Equal(got, want) {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
}
