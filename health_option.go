package lifecycle

import (
	"fmt"
	"time"
)

// ProbeOption changes how one check is run and counted.
type ProbeOption func(*probeConfig) error

type probeConfig struct {
	timeout   time.Duration
	ttl       time.Duration // 0: every probe runs the check
	interval  time.Duration // 0: not periodic
	maxAge    time.Duration // 0: a result older than the probe that asks is too old
	failures  int
	successes int
	critical  bool
}

// newProbeConfig applies the options and fills in the defaults. handler is how
// long a handler has to answer.
func newProbeConfig(handler time.Duration, opts []ProbeOption) (probeConfig, error) {
	cfg := probeConfig{failures: 1, successes: 1, critical: true}
	for i, opt := range opts {
		if opt == nil {
			return cfg, fmt.Errorf("%w: option %d is nil", ErrInvalidProbe, i)
		}
		if err := opt(&cfg); err != nil {
			return cfg, err
		}
	}
	if cfg.timeout == 0 {
		// A little less than the handler has, so that a check's own verdict is
		// in when the handler must answer.
		cfg.timeout = handler - handler/9
	}
	switch {
	case cfg.ttl > 0 && cfg.interval > 0:
		return cfg, fmt.Errorf("%w: WithCache and WithPeriodic exclude each other: a periodic check is answered from its last result already", ErrInvalidProbe)
	case cfg.maxAge > 0 && cfg.maxAge < max(cfg.ttl, cfg.interval):
		return cfg, fmt.Errorf("%w: a result would be too old after %v and renewed after %v only", ErrInvalidProbe, cfg.maxAge, max(cfg.ttl, cfg.interval))
	case cfg.maxAge > 0:
	case cfg.interval > 0:
		cfg.maxAge = 3*cfg.interval + cfg.timeout
	case cfg.ttl > 0:
		cfg.maxAge = cfg.ttl + cfg.timeout
	}
	return cfg, nil
}

// positive sets *to, or says that what is not a positive duration.
func positive(what string, d time.Duration, to *time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%w: %s %v is not positive", ErrInvalidProbe, what, d)
	}
	*to = d
	return nil
}

// WithCheckTimeout sets how long one run of the check may take. Its context ends
// then, and from then on the check is down, "still running for …", until the
// run returns. Defaults to eight ninths of the registry's probe timeout: 800
// ms. A longer one than the probe timeout makes sense with [WithPeriodic] or
// [WithCache], since a handler does not wait longer than that.
func WithCheckTimeout(d time.Duration) ProbeOption {
	return func(c *probeConfig) error { return positive("timeout", d, &c.timeout) }
}

// WithCache answers from the last result for ttl after it came in. The first
// probe after that runs the check again and waits for it; a run that does not
// end in time leaves the old result standing until [WithMaxAge].
func WithCache(ttl time.Duration) ProbeOption {
	return func(c *probeConfig) error { return positive("cache ttl", ttl, &c.ttl) }
}

// WithPeriodic runs the check in the background, interval after the end of the
// run before, from [Registry.Start] on; probes are answered from the last
// result and wait only for the first. On a registry that is not started it is
// WithCache(interval), so that nothing goes stale unnoticed.
func WithPeriodic(interval time.Duration) ProbeOption {
	return func(c *probeConfig) error { return positive("interval", interval, &c.interval) }
}

// WithMaxAge sets how old the last result may be when there is no newer one: a
// check whose result is older is unknown, and down on liveness. Defaults to
// three intervals and the timeout for a periodic check, the ttl and the
// timeout for a cached one. For any other check there is no such grace by
// default: a probe that gets no result in time is a probe without a result.
func WithMaxAge(d time.Duration) ProbeOption {
	return func(c *probeConfig) error { return positive("max age", d, &c.maxAge) }
}

// WithFailureThreshold keeps a check up until n runs in a row have not passed.
// A run that hangs counts once for every timeout that passes. Defaults to 1.
// A result that is too old counts at once.
func WithFailureThreshold(n int) ProbeOption {
	return func(c *probeConfig) error { return threshold("failure", n, &c.failures) }
}

// WithSuccessThreshold keeps a check from being up until n runs in a row have
// passed, the first time as well. Defaults to 1.
func WithSuccessThreshold(n int) ProbeOption {
	return func(c *probeConfig) error { return threshold("success", n, &c.successes) }
}

func threshold(what string, n int, to *int) error {
	if n < 1 {
		return fmt.Errorf("%w: %s threshold %d is not at least 1", ErrInvalidProbe, what, n)
	}
	*to = n
	return nil
}

// WithNonCritical shows the check and does not let it fail the plane.
func WithNonCritical() ProbeOption {
	return func(c *probeConfig) error {
		c.critical = false
		return nil
	}
}
