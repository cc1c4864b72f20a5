package health

import "testing"

func TestOnlyACriticalCheckFailsThePlane(t *testing.T) {
	for name, tc := range map[string]struct {
		opts   []Option
		status int
		line   string
	}{
		"critical":     {nil, 503, "[-]db failed: connection refused\nreadyz check failed"},
		"not critical": {[]Option{WithNonCritical()}, 200, "[-]db failed (not critical): connection refused\nreadyz check passed"},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := NewRegistry(), new(fake)
			f.set(errDown)
			must(t, r.RegisterReadiness("db", f, tc.opts...))
			expect(t, r, "/readyz", tc.status, "")
			expect(t, r, "/readyz?verbose", tc.status, tc.line)
			expect(t, r, "/readyz/db", 503, "") // alone, every check counts
			if st := r.Snapshot()[0]; st.Critical != (tc.opts == nil) || st.State != Down {
				t.Errorf("the snapshot says %+v", st)
			}
			f.set(nil)
			expect(t, r, "/readyz", 200, `{"status":"ok","checks":{"db":"ok"}}`)
		})
	}
}
