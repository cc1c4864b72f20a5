package lifecycletest

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"time"
)

// labelKey is the profiler label of an App's goroutines. A goroutine inherits the labels
// of the goroutine that starts it. So every goroutine that the App, its units and their
// handlers start has the label, and no goroutine of another test has it.
const labelKey = "lifecycletest"

func labelled(ctx context.Context, label string, fn func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(labelKey, label), fn)
}

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

// leftBehind returns the stacks of the goroutines with the label that do not end by
// themselves. It gives goroutines that are just ending a moment. In a bubble that
// moment passes when every goroutine in it waits.
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
