package health

import (
	"fmt"
	"slices"
	"time"
)

// Option changes how a check is run, counted and shown.
type Option func(*config) error

type config struct {
	timeout     time.Duration
	ttl         time.Duration // 0: every probe runs the check
	interval    time.Duration // 0: not periodic
	maxAge      time.Duration // 0: a result from before the probe is too old
	failures    int
	successes   int
	nonCritical bool // its failure does not fail the plane
	dependsOn   []string
}

// newConfig applies the options and fills in the defaults. handler is the time
// that a handler has to answer.
func newConfig(handler time.Duration, opts []Option) (config, error) {
	cfg := config{failures: 1, successes: 1}
	for i, opt := range opts {
		if opt == nil {
			return cfg, fmt.Errorf("%w: option %d is nil", ErrInvalid, i+1)
		}
		if err := opt(&cfg); err != nil {
			return cfg, err
		}
	}
	if cfg.timeout == 0 {
		// A little less than the handler's time, so that the check's own result
		// is known when the handler must answer.
		cfg.timeout = handler - handler/9
	}
	everyProbeRuns := cfg.ttl == 0 && cfg.interval == 0 && cfg.maxAge == 0
	switch {
	case everyProbeRuns && cfg.timeout >= handler:
		return cfg, fmt.Errorf("%w: timeout %v is not less than the probe timeout of %v, after which a probe has its answer: "+
			"add WithCache, WithPeriodic or WithMaxAge, or raise the probe timeout", ErrInvalid, cfg.timeout, handler)
	case cfg.ttl > 0 && cfg.interval > 0:
		return cfg, fmt.Errorf("%w: WithCache and WithPeriodic exclude each other: a periodic check is answered from its last result already", ErrInvalid)
	case cfg.maxAge > 0 && cfg.maxAge < max(cfg.ttl, cfg.interval):
		return cfg, fmt.Errorf("%w: a result would be too old after %v, but renewed only after %v", ErrInvalid, cfg.maxAge, max(cfg.ttl, cfg.interval))
	case cfg.maxAge > 0:
	case cfg.interval > 0:
		cfg.maxAge = 3*cfg.interval + cfg.timeout
	case cfg.ttl > 0:
		cfg.maxAge = cfg.ttl + cfg.timeout
	}
	return cfg, nil
}

// positive sets *to, or returns an error that names the duration.
func positive(what string, d time.Duration, to *time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%w: %s %v is not positive", ErrInvalid, what, d)
	}
	*to = d
	return nil
}

// WithTimeout sets how long one run of the check may take. Then its context ends,
// and the check is down, "still running for …", until the run returns. Defaults
// to eight ninths of the registry's probe timeout: 800 ms. A handler does not wait
// longer than the probe timeout. So a check whose timeout is not less than that needs
// [WithPeriodic], [WithCache] or [WithMaxAge]; without, it is refused.
func WithTimeout(d time.Duration) Option {
	return func(c *config) error { return positive("timeout", d, &c.timeout) }
}

// WithCache uses the last result for ttl. The first probe after that runs the
// check again and waits for it. Until that run has ended, the old result counts,
// up to [WithMaxAge].
func WithCache(ttl time.Duration) Option {
	return func(c *config) error { return positive("cache ttl", ttl, &c.ttl) }
}

// WithPeriodic runs the check in the background from [Registry.Start] on, each
// run interval after the end of the last. Probes are answered from the last
// result and wait for the first one only. On a registry that is not started it
// acts like WithCache(interval), so that probes renew the result.
func WithPeriodic(interval time.Duration) Option {
	return func(c *config) error { return positive("interval", interval, &c.interval) }
}

// WithMaxAge sets how old the last result may be when there is no newer one. A
// check whose result is older is unknown, and down on liveness. Defaults to three
// intervals and the timeout for a periodic check, and to the ttl and the timeout
// for a cached one. Any other check has no result that is older than its probe.
func WithMaxAge(d time.Duration) Option {
	return func(c *config) error { return positive("max age", d, &c.maxAge) }
}

// WithFailureThreshold keeps a check up until n runs in a row have not passed. A
// run that hangs counts once for each timeout that it lasts. A result that is too
// old counts at once. Defaults to 1.
func WithFailureThreshold(n int) Option {
	return func(c *config) error { return threshold("failure", n, &c.failures) }
}

// WithSuccessThreshold keeps a check from being up until n runs in a row have
// passed. This also holds after the registration. Defaults to 1.
func WithSuccessThreshold(n int) Option {
	return func(c *config) error { return threshold("success", n, &c.successes) }
}

func threshold(what string, n int, to *int) error {
	if n < 1 {
		return fmt.Errorf("%w: %s threshold %d is not at least 1", ErrInvalid, what, n)
	}
	*to = n
	return nil
}

// WithNonCritical shows the check and does not let it fail the plane. Without it a check is
// critical: the process cannot serve without what it checks.
func WithNonCritical() Option {
	return func(c *config) error {
		c.nonCritical = true
		return nil
	}
}

// WithDependsOn names checks of the same plane without which this one cannot
// pass. While this check and one of those do not pass, answers show this check as
// caused by the other, and [Status] names it. So of ten failures with one root,
// an answer describes only the root in full. The option changes nothing else: the
// check runs and fails the plane as before.
//
// The named checks may be registered later, in any order. A registration that
// makes a check depend on itself, directly or through others, is an error.
// [Registry.Err] reports a name that is not registered. The option may be given
// more than once; all names count.
func WithDependsOn(names ...string) Option {
	names = slices.Clone(names)
	return func(c *config) error {
		for _, name := range names {
			if err := validateName(name); err != nil {
				return fmt.Errorf("WithDependsOn: %w", err)
			}
			if !slices.Contains(c.dependsOn, name) {
				c.dependsOn = append(c.dependsOn, name)
			}
		}
		return nil
	}
}
