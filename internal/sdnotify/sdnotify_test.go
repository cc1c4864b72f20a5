package sdnotify

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWatchdogVariables(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		says      string
	}{
		{"", "", 0, ""}, {"", "42", 0, ""},
		{"30000000", "", 30 * time.Second, ""}, {"30000000", "42", 30 * time.Second, ""}, {"30000000", "43", 0, ""},
		{"0", "", 0, "WATCHDOG_USEC"}, {"-5", "", 0, "WATCHDOG_USEC"}, {"soon", "", 0, "WATCHDOG_USEC"},
		{"9223372036854775807", "", 0, "WATCHDOG_USEC"}, {"1", "me", 0, "WATCHDOG_PID"},
	} {
		d, err := watchdog(c.usec, c.pid, 42)
		if d != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("WATCHDOG_USEC=%q WATCHDOG_PID=%q: %v, %v; want %v and %q", c.usec, c.pid, d, err, c.want, c.says)
		}
	}
}

func TestStatusIsOneLine(t *testing.T) {
	if s := Status("a\nREADY=1\r\x00"); s != "STATUS=a READY=1  " {
		t.Errorf("%q", s)
	}
	if s := Status(strings.Repeat("é", 1<<20)); len(s) > 2*maxStatus || !utf8.ValidString(s) || !strings.HasSuffix(s, "é…") {
		t.Errorf("a long one has %d bytes and ends in %q", len(s), s[len(s)-10:])
	}
	if s := Status("a\xffb"); !utf8.ValidString(s) {
		t.Errorf("%q is not UTF-8", s)
	}
}

func FuzzWatchdog(f *testing.F) {
	f.Add("30000000", "42")
	f.Add("9223372036854776", "")
	f.Fuzz(func(t *testing.T, usec, pid string) {
		d, err := watchdog(usec, pid, 42)
		if d < 0 || err != nil && d != 0 {
			t.Errorf("WATCHDOG_USEC=%q WATCHDOG_PID=%q: %v, %v", usec, pid, d, err)
		}
	})
}
