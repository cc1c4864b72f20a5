package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
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
	// KubeEvictions is apart, because Kubernetes has the API only since 1.37, as alpha.
	KubeEvictions bool `usage:"answer for the eviction of the pod: its streams may end first; needs permissions and Kube"`
	Lifecycle     lifecycle.Config
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

// The formats of the log.
const (
	logAuto = "auto"
	logText = "text"
	logJSON = "json"
)

// newLogger writes JSON for machines, or short lines for people: the
// time of day to the millisecond, and the level unless it is INFO.
func newLogger(format string, w io.Writer) *slog.Logger {
	_, inCluster := os.LookupEnv("KUBERNETES_SERVICE_HOST")
	if format == logJSON || format == logAuto && inCluster {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case len(groups) == 0 && a.Key == slog.TimeKey:
			a.Value = slog.StringValue(a.Value.Time().Format("15:04:05.000"))
		case len(groups) == 0 && a.Key == slog.LevelKey && a.Value.String() == slog.LevelInfo.String():
			return slog.Attr{}
		case a.Value.Kind() == slog.KindDuration:
			a.Value = slog.DurationValue(a.Value.Duration().Round(time.Millisecond))
		}
		return a
	}}))
}
