package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// Config configures the service, in service.yaml, in the environment
// (SERVICE_ADDR, SERVICE_LIFECYCLE_DRAIN_INTERVAL) and with flags.
type Config struct {
	Addr        string        `usage:"serve HTTP on this address"`
	DB          string        `usage:"the database file; empty uses a temporary one"`
	Poll        time.Duration `usage:"look for work this often"`
	Log         string        `usage:"format of the log: text, json, or auto, which is json in Kubernetes"`
	AllowFaults bool          `usage:"serve POST /fail, which breaks the service on purpose; for tests"`
	Kube        bool          `usage:"ask Kubernetes when the cluster has noticed a stop, and whether the pod's manifest fits; needs permissions"`
	Lifecycle   lifecycle.Config
}

// WithDefaults returns the defaults.
func (Config) WithDefaults() Config {
	return Config{Addr: ":8080", Poll: 500 * time.Millisecond, Log: logAuto, Lifecycle: lifecycle.Config{Name: "service"}}
}

// Validate reports invalid values. Lifecycle validates itself.
func (c Config) Validate() error {
	var errs []error
	if c.Poll <= 0 {
		errs = append(errs, fmt.Errorf("poll is %v, want more than 0", c.Poll))
	}
	switch c.Log {
	case logAuto, logText, logJSON:
	default:
		errs = append(errs, fmt.Errorf("log is %q, want text, json or auto", c.Log))
	}
	return errors.Join(errs...)
}
