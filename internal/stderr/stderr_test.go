package stderr

import (
	"strings"
	"testing"
)

func TestTailKeepsTheEnd(t *testing.T) {
	var all strings.Builder
	end := &Tail{Size: 10, Next: &all}
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

func TestLastLine(t *testing.T) {
	for want, text := range map[string]string{
		"":                       "\n \n",
		"no such file":           "starting\nno such file\n\n",
		"TypeError: x is not it": "/srv/a.js:1\nfoo\n^\n\nTypeError: x is not it\n    at main (/srv/a.js:1:1)\n\nNode.js v22.1.0\n",
		"ValueError: boom":       "begin\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    f()\nValueError: boom\n",
		"panic: no table":        "begin\npanic: no table\n\ngoroutine 1 [running]:\nmain.main()\n\t/srv/a.go:7 +0x25\n",
		"fatal error: all goroutines are asleep - deadlock!": "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [select (no cases)]:\nmain.main()\n\t/srv/a.go:7 +0x25\nexit status 2\n",
		"done": "panic: is a word\ndone\n",
	} {
		if got := LastLine(text); got != want {
			t.Errorf("of %q it is %q, want %q", text, got, want)
		}
	}
}
