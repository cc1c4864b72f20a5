package health

import (
	"errors"
	"strings"
	"testing"
)

func TestOnlySeverityHighFailsThePlane(t *testing.T) {
	for severity, tc := range map[Severity]struct {
		status int
		line   string
	}{
		SeverityHigh:   {503, "[-]db failed: connection refused\nreadyz check failed"},
		SeverityMedium: {200, "[-]db failed (not critical, medium severity): connection refused\nreadyz check passed"},
		SeverityLow:    {200, "[-]db failed (not critical): connection refused\nreadyz check passed"},
	} {
		t.Run(string(severity), func(t *testing.T) {
			r, f := NewRegistry(), new(fake)
			f.set(errDown)
			must(t, r.RegisterReadiness("db", f, WithSeverity(severity)))
			expect(t, r, "/readyz", tc.status, "")
			expect(t, r, "/readyz?verbose", tc.status, tc.line)
			expect(t, r, "/readyz/db", 503, "") // alone, every check counts
			st := r.Snapshot()[0]
			if st.Severity != severity || st.Critical != (severity == SeverityHigh) || st.State != Down {
				t.Errorf("the snapshot says %+v", st)
			}
			f.set(nil)
			expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok"}}`)
		})
	}
}

func TestSeverityIsHighUnlessSaid(t *testing.T) {
	r := NewRegistry()
	must(t, r.RegisterReadiness("db", ProbeFunc(passing)))
	must(t, r.RegisterReadiness("low", ProbeFunc(passing), WithNonCritical()))
	if st := r.Snapshot(); st[0].Severity != SeverityHigh || st[1].Severity != SeverityLow {
		t.Errorf("got %v and %v, want high and low", st[0].Severity, st[1].Severity)
	}
	err := r.RegisterReadiness("x", ProbeFunc(passing), WithSeverity("fatal"))
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), `"fatal", want high, medium or low`) {
		t.Errorf("an unknown severity: %v", err)
	}
}
