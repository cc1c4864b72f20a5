package inbox_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/inbox"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every item arrives once, and in the order of its sender.
func TestEveryItemArrivesOnce(t *testing.T) {
	const senders, each = 8, 1000
	box := inbox.New[[2]int]()
	var got [senders][]int
	var reading, sending sync.WaitGroup
	reading.Go(func() {
		box.Each(func(item [2]int) { got[item[0]] = append(got[item[0]], item[1]) })
	})
	for sender := range senders {
		sending.Go(func() {
			for i := range each {
				if !box.Post([2]int{sender, i}) {
					t.Error("an open inbox takes no item")
				}
			}
		})
	}
	sending.Wait()
	box.Close()
	reading.Wait()
	for sender, items := range got {
		if len(items) != each || !slices.IsSorted(items) {
			t.Errorf("sender %d: %d items of %d, in order: %v", sender, len(items), each, slices.IsSorted(items))
		}
	}
	if box.Post([2]int{}) {
		t.Error("a closed inbox takes an item")
	}
}
