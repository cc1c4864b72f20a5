package lifecycletest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"time"
)

// labelKey marks the goroutines of one App. A goroutine inherits the labels of
// the one that began it, so that the mark is on everything that the App, its
// units and their handlers begin, and on nothing of other tests.
const labelKey = "lifecycletest"

func labelled(label string, fn func()) {
	pprof.Do(context.Background(), pprof.Labels(labelKey, label), func(context.Context) { fn() })
}

// labelledStacks returns the stacks of the goroutines that have the label.
func labelledStacks(label string) string {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return ""
	}
	mark := `"` + labelKey + `":"` + label + `"`
	var found []string
	for block := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(block, mark) {
			found = append(found, block)
		}
	}
	return strings.Join(found, "\n\n")
}

// leftBehind returns the stacks of what does not end by itself: it gives what is
// just ending a moment. In a bubble that moment passes when everything in it
// waits.
func leftBehind(label string) string {
	var left string
	for pause := time.Millisecond; pause < 2*time.Second; pause *= 2 {
		if left = labelledStacks(label); left == "" {
			return ""
		}
		time.Sleep(pause)
	}
	return left
}
