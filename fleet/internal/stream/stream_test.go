package stream_test

import (
	"slices"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConvertKeepsKindsKeysAndOrder(t *testing.T) {
	var got []stream.Item[string]
	to := stream.Convert(func(it stream.Item[string]) { got = append(got, it) }, strconv.Itoa)
	to.Put("a", 1)
	to.Sync()
	to.Delete("a")
	to.Gap()
	want := []stream.Item[string]{
		{Kind: stream.Put, Key: "a", Value: "1"}, {Kind: stream.Synced},
		{Kind: stream.Deleted, Key: "a"}, {Kind: stream.Gap},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
