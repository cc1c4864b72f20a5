package otel

import (
	"context"
	"errors"
	"slices"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"go.opentelemetry.io/otel/metric"
)

// Metrics returns an option with which an App reports its last stop as OpenTelemetry
// metrics, and flushes the provider when its stop is over:
//
//	lifecycle.last_stop.duration      s, from the request to the return of the last hook
//	lifecycle.last_stop.budget        s, the longest that it might have taken
//	lifecycle.last_stop.requests_cut
//	lifecycle.last_stop.abandoned     units, drainers and hooks
//	lifecycle.last_stop.exit_status   as lifecycle.ExitCode gives it
//
// The last stop is the App's own once it is over. Until then it is the stop of the previous
// life, from Config.LastStopFile. Without either there is no value. Duration and exit status
// are absent when the process was killed before its stop was over. Each value has the
// attributes lifecycle.app, lifecycle.state (the last phase: "stopped", "failed",
// "killed", or the one in which the process was killed) and lifecycle.reason.
//
// The flush takes part of ShutdownGrace: see Config.ReportSlice. When it fails, the log
// says so. The provider stays open. [lifecycle.New] fails when the provider is nil.
func Metrics(provider metric.MeterProvider) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		if provider == nil {
			return errors.New("otel: the meter provider is nil")
		}
		if err := observe(provider.Meter(Scope), a); err != nil {
			return err
		}
		a.OnReport("otel", func(ctx context.Context, _ lifecycle.Report) error {
			if p, ok := provider.(interface{ ForceFlush(context.Context) error }); ok {
				return p.ForceFlush(ctx)
			}
			return nil
		})
		return nil
	})
}

// observe registers the metrics.
func observe(meter metric.Meter, a *lifecycle.App) error {
	var errs []error
	inSeconds := func(name, words string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(words))
		errs = append(errs, err)
		return g
	}
	number := func(name, unit, words string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(words))
		errs = append(errs, err)
		return g
	}
	took := inSeconds("lifecycle.last_stop.duration", "Duration of the last stop, from the request to the return of the last hook.")
	budget := inSeconds("lifecycle.last_stop.budget", "The longest that the last stop might have taken.")
	cut := number("lifecycle.last_stop.requests_cut", "{request}", "Requests that the last stop cut.")
	left := number("lifecycle.last_stop.abandoned", "{part}", "Units, drainers and hooks that the last stop abandoned.")
	status := number("lifecycle.last_stop.exit_status", "1", "Exit status of the last stop.")
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		r := a.Report()
		if r.Done.IsZero() {
			if r.Previous == nil {
				return nil
			}
			r = *r.Previous
		}
		of := metric.WithAttributes(
			attrApp.String(text.Clip(r.Name, maxText)),
			attrState.String(state(r)),
			attrReason.String(text.Clip(r.Reason, maxText)),
		)
		o.ObserveFloat64(budget, r.Budget.Seconds(), of)
		o.ObserveInt64(cut, int64(r.CutRequests), of)
		o.ObserveInt64(left, int64(abandoned(r)), of)
		if !r.Done.IsZero() {
			o.ObserveInt64(status, int64(r.ExitStatus), of)
			if !r.Requested.IsZero() {
				o.ObserveFloat64(took, r.Done.Sub(r.Requested).Seconds(), of)
			}
		}
		return nil
	}, took, budget, cut, left, status)
	return err
}

// state returns the last phase of a life. An App that reports its stop is still in the
// phase stopping, and its last phase follows from its result.
func state(r lifecycle.Report) string {
	switch {
	case r.Done.IsZero() || r.Phase == lifecycle.PhaseKilled:
		return string(r.Phase)
	case r.Error == "":
		return string(lifecycle.PhaseStopped)
	}
	return string(lifecycle.PhaseFailed)
}

// abandoned counts the parts that a stop has abandoned.
func abandoned(r lifecycle.Report) (n int) {
	for _, o := range slices.Concat(r.Units, r.Drainers, r.Hooks) {
		if o.Result == lifecycle.ResultAbandoned {
			n++
		}
	}
	return n
}
