package host_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestCompareVersions checks the code and the settings of two versions, also of a canary,
// and of settings that are no longer kept.
func TestCompareVersions(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	spec := host.Spec{ID: "w", MIMEType: "text/x-starlark", Topic: "work.w", Code: prefix("1")}
	apply := func() string {
		t.Helper()
		_, err := h.Apply(t.Context(), spec)
		must(t, err)
		rec, err := h.Get(t.Context(), "w")
		must(t, err)
		return rec.Newest().Digest
	}
	first := apply()
	if _, err := h.Compare(t.Context(), "w", "", ""); !errors.Is(err, host.ErrNoVersion) {
		t.Errorf("a single version: %v", err)
	}
	spec.Code, spec.Limits = prefix("2"), engine.Limits{Time: time.Second}
	second := apply()
	c, err := h.Compare(t.Context(), "w", "", "")
	must(t, err)
	if string(c.Before) != string(prefix("1")) || string(c.After) != string(prefix("2")) || c.From.Digest != first || c.To.Digest != second || !c.Known || fmt.Sprint(c.Settings) != "[{limits.time  1s}]" {
		t.Errorf("two versions: %+v", c)
	}
	// The same code with other settings is a version too.
	spec.Limits.Time = 2 * time.Second
	apply()
	if c, err = h.Compare(t.Context(), "w", "", ""); err != nil || c.Before != nil || c.After != nil || fmt.Sprint(c.Settings) != "[{limits.time 1s 2s}]" {
		t.Errorf("other settings: %+v, %v", c, err)
	}
	spec.Rollout, spec.Code = host.Rollout{Canary: 10}, prefix("3")
	third := apply()
	if c, err = h.Compare(t.Context(), "w", second, third); err != nil || string(c.After) != string(prefix("3")) || !c.Known {
		t.Errorf("a canary: %+v, %v", c, err)
	}
	if c, err = h.Compare(t.Context(), "w", third, first); err != nil || string(c.After) != string(prefix("1")) || fmt.Sprint(c.Settings) != "[{limits.time 2s } {rollout.canary 10% }]" {
		t.Errorf("backwards: %+v, %v", c, err)
	}
	for range 40 { // each is two changes, and the bucket keeps 64
		must(t, h.StopWorker(t.Context(), "w"))
		must(t, h.StartWorker(t.Context(), "w"))
	}
	if c, err = h.Compare(t.Context(), "w", first, second); err != nil || c.Known || string(c.Before) != string(prefix("1")) {
		t.Errorf("settings that are no longer kept: %+v, %v", c, err)
	}
	for _, digest := range []string{"00000000", "zz"} {
		if _, err := h.Compare(t.Context(), "w", digest, ""); !errors.Is(err, host.ErrNoVersion) {
			t.Errorf("an unknown version: %v", err)
		}
	}
	if _, err := h.Compare(t.Context(), "none", "", ""); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("an unknown worker: %v", err)
	}
}
