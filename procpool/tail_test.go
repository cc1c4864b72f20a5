package procpool

import (
	"strings"
	"testing"
)

func TestTailKeepsTheEnd(t *testing.T) {
	var all strings.Builder
	end := &tail{size: 10, next: &all}
	for _, c := range []struct{ write, want string }{
		{"", ""},
		{"abcde", "abcde"},
		{"fghij", "abcdefghij"},
		{"kl", "cdefghijkl"},
		{"0123456789", "0123456789"},
		{"more than there is room for", "s room for"},
		{"!", " room for!"},
	} {
		if n, err := end.Write([]byte(c.write)); n != len(c.write) || err != nil {
			t.Errorf("write %q: %d, %v", c.write, n, err)
		}
		if got := end.String(); got != c.want {
			t.Errorf("after %q it is %q, want %q", c.write, got, c.want)
		}
	}
	if !strings.HasPrefix(all.String(), "abcdefghijkl") || !strings.HasSuffix(all.String(), "room for!") {
		t.Errorf("passed on was %q", all.String())
	}
}
