// Package health answers the probes of Kubernetes: is the process alive, can it
// serve now, has it finished starting?
//
// A [Registry] holds named checks on three planes and serves them over HTTP as
// /livez, /readyz and /startupz. It works alone, in any server:
//
//	reg := health.NewRegistry()
//	reg.RegisterReadiness("db", health.ProbeFunc(db.PingContext))
//	mux.Handle("/readyz", reg.Handler())
//
// # What a check may do
//
// A check may be slow, hang, panic or return a nil pointer as its error. It runs
// in a goroutine of its own with a timeout of its own, one run at a time, however
// many probes arrive. A handler always answers within the probe timeout. A check
// that hangs is down until it returns.
//
// # How a check is run
//
// By default every probe runs the check and waits for it. [WithCache] keeps the
// result for a while; [WithPeriodic] runs the check in the background. A result
// that is too old is never shown as up ([WithMaxAge]). [WithFailureThreshold] and
// [WithSuccessThreshold] require several results in a row.
//
// # What a failure means
//
// The failure of a check takes the process out of rotation, unless it is [WithNonCritical].
// [WithDependsOn] names the checks without which this one cannot pass, so that an
// answer shows one root cause instead of ten failures.
package health
