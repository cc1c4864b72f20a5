package host

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// FromEnv returns a copy of cfg with the settings of the environment, under the
// model's names. A variable that is missing or empty changes nothing. lookup is
// os.LookupEnv.
//
//	WORKER_RECOVERY_ON_START                 true or false: RecoveryOff
//	WORKER_RECOVERY_LEASE_TTL_SECONDS        LeaseTTL
//	WORKER_RECOVERY_ACQUIRE_TIMEOUT_SECONDS  AcquireTimeout
//	GROUP_LOCK_RETRY_BASE_DELAY_MS           RetryBase
//	GROUP_LOCK_MAX_RETRIES                   MaxRetries
//
// The error names each invalid variable and the values that it takes.
func FromEnv(cfg Config, lookup func(string) (string, bool)) (Config, error) {
	var errs []error
	number := func(name string, set func(int)) {
		text, ok := lookup(name)
		if !ok || text == "" {
			return
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1e9 {
			errs = append(errs, fmt.Errorf("%s=%.40q: want a whole number that is not negative", name, text))
			return
		}
		set(n)
	}
	if text, ok := lookup("WORKER_RECOVERY_ON_START"); ok && text != "" {
		on, err := strconv.ParseBool(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("WORKER_RECOVERY_ON_START=%.40q: want true or false", text))
		}
		cfg.RecoveryOff = !on
	}
	number("WORKER_RECOVERY_LEASE_TTL_SECONDS", func(n int) { cfg.LeaseTTL = time.Duration(n) * time.Second })
	number("WORKER_RECOVERY_ACQUIRE_TIMEOUT_SECONDS", func(n int) { cfg.AcquireTimeout = time.Duration(n) * time.Second })
	number("GROUP_LOCK_RETRY_BASE_DELAY_MS", func(n int) { cfg.RetryBase = time.Duration(n) * time.Millisecond })
	number("GROUP_LOCK_MAX_RETRIES", func(n int) {
		cfg.MaxRetries = n
		if n == 0 {
			cfg.MaxRetries = NoRetry
		}
	})
	return cfg, errors.Join(errs...)
}
