package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
)

func TestReadings(t *testing.T) {
	var r eventlog.Readings
	now := time.Now()
	for i, step := range []struct {
		after     time.Duration
		who, what string
		want      bool
	}{
		{0, "ada", "a log", false},
		{9 * time.Minute, "ada", "a log", true},
		{18 * time.Minute, "ada", "a log", true},
		{18 * time.Minute, "ada", "another log", false},
		{18 * time.Minute, "bob", "a log", false},
		{28 * time.Minute, "ada", "a log", false},
		{28 * time.Minute, "ada", "a log", true},
	} {
		if got := r.Note(now.Add(step.after), step.who, step.what); got != step.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
	for i := range 30_000 {
		r.Note(now, fmt.Sprint(i), "a log")
	}
	if r.Note(now, "0", "a log") || !r.Note(now, "29999", "a log") {
		t.Error("it keeps all readings, or none")
	}
}
