package budget

import (
	"fmt"
	"strings"
	"time"
)

// Fault is a sum of times that does not fit.
type Fault struct {
	Fields  []string // of the root package's Config
	Problem string
}

// Limit is a time that Kubernetes gives a stop. A Grace of 0 is not declared.
type Limit struct {
	Field, Where string
	Grace        time.Duration
}

// Faults returns the sums that do not fit, for a budget made from a Config with this
// DrainMax and this PreStop.
func (b Budget) Faults(drainMax, preStop time.Duration, limits ...Limit) (faults []Fault) {
	bad := func(fields []string, format string, args ...any) {
		faults = append(faults, Fault{fields, fmt.Sprintf(format, args...)})
	}
	if b.Window.Min > b.Window.Full {
		bad([]string{"DrainMin", "DrainInterval"}, "DrainMin (%v) is longer than the window, DrainInterval (%v)", b.Window.Min, b.Window.Full)
	}
	if drainMax > 0 && drainMax < b.Window.Full {
		bad([]string{"DrainMax", "DrainInterval"}, "DrainMax (%v) is shorter than the window, DrainInterval (%v)", drainMax, b.Window.Full)
	}
	if sum := b.Linger + b.UnitSlice + b.HookSlice + b.ReportSlice; sum > b.Grace {
		fields := []string{"Linger", "UnitSlice", "HookSlice"}
		times := fmt.Sprintf("%v + %v + %v", b.Linger, b.UnitSlice, b.HookSlice)
		if b.ReportSlice > 0 {
			fields = append(fields, "ReportSlice")
			times += fmt.Sprintf(" + %v", b.ReportSlice)
		}
		bad(append(fields, "ShutdownGrace"), "%s is %s = %v, and has to fit into ShutdownGrace, which is %v",
			strings.Join(fields, " + "), times, sum, b.Grace)
	}
	if b.AcceptQuiet > b.AcceptMax {
		bad([]string{"AcceptQuiet", "AcceptMax"},
			"AcceptQuiet (%v) is longer than AcceptMax (%v), after which the listeners close in any case",
			b.AcceptQuiet, b.AcceptMax)
	}
	if b.MinSlice > b.HookSlice {
		bad([]string{"MinSlice", "HookSlice"}, "MinSlice (%v) is longer than HookSlice (%v), which all hooks share", b.MinSlice, b.HookSlice)
	}
	window := "DrainInterval"
	if b.Window.Max > b.Window.Full {
		window = "DrainMax"
	}
	preStop = max(preStop, 0)
	for _, l := range limits {
		if need := preStop + b.Total; l.Grace > 0 && need > l.Grace {
			bad([]string{l.Field, "PreStop", window, "ShutdownGrace"},
				"PreStop + "+window+" + ShutdownGrace + margin is %v + %v + %v + %v = %v, and %s (%s) gives %v: "+
					"the kubelet would kill the process %v before it is done; raise that to %v or more, or lower these",
				preStop, b.Window.Max, b.Grace, b.Margin, need, l.Where, l.Field, l.Grace, need-l.Grace, need)
		}
	}
	return faults
}
