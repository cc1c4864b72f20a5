package dashboard

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// The bars of a life fill it from its begin to now, also when clocks are wrong, all happens
// at one moment, or a stay is shorter than a dot.
func TestStays(t *testing.T) {
	begin := time.Unix(1000, 0)
	entry := func(to string, after time.Duration) *operatorv1.HistoryEntry {
		return &operatorv1.HistoryEntry{To: to, At: timestamppb.New(begin.Add(after))}
	}
	list := stays([]*operatorv1.HistoryEntry{entry("planning", 0), entry("flying", time.Minute), entry("landing", time.Minute+time.Millisecond)}, false, begin.Add(4*time.Minute))
	if len(list) != 3 || list[0].At != 0 || list[0].Long != 250 || list[0].Took.AsDuration() != time.Minute || list[0].Now {
		t.Fatalf("%+v", list)
	}
	if list[1].Long != barLeast || !list[2].Now || list[2].At+list[2].Long != barWidth {
		t.Errorf("%+v", list)
	}
	over := stays([]*operatorv1.HistoryEntry{entry("planning", 0), entry("completed", time.Minute)}, true, begin.Add(time.Hour))
	if over[0].Long != barWidth || over[1].Took != nil || over[1].Now || over[1].At+over[1].Long != barWidth {
		t.Errorf("a life that is over: %+v", over)
	}
	for name, list := range map[string][]stay{
		"at one moment":          stays([]*operatorv1.HistoryEntry{entry("a", 0), entry("b", 0)}, true, begin),
		"a clock that is behind": stays([]*operatorv1.HistoryEntry{entry("a", time.Hour), entry("b", 0)}, false, begin.Add(-time.Hour)),
		"without times":          stays([]*operatorv1.HistoryEntry{{To: "a"}, {To: "b"}}, false, begin),
	} {
		for _, s := range list {
			if s.At < 0 || s.Long < barLeast || s.At+s.Long > barWidth+barLeast || s.Took.AsDuration() < 0 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
	if stays(nil, false, begin) != nil {
		t.Error("a life without a history")
	}
}
