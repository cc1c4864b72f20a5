package main

import (
	"io"
	"log/slog"
	"os"
	"time"
)

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
