package text

import (
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClip(t *testing.T) {
	for name, tc := range map[string]struct {
		s    string
		n    int
		want string
	}{
		"short":                    {"abc", 3, "abc"},
		"long":                     {"abcdefgh", 6, "abc…"},
		"between characters":       {"aééééé", 7, "aé…"},
		"nothing but the ellipsis": {"abcdefgh", 3, "…"},
		"empty":                    {"", 3, ""},
		"invalid":                  {"a\xffb", 8, "a\uFFFDb"},
		"invalid grows":            {"\xff.\xff.\xff.", 6, "\uFFFD…"},
		"cut in a character":       {"ab€€", 7, "ab…"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Clip(tc.s, tc.n); got != tc.want {
				t.Errorf("Clip(%q, %d) = %q, want %q", tc.s, tc.n, got, tc.want)
			}
		})
	}
}

func TestHead(t *testing.T) {
	for _, tc := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abc", 2, "ab"}, {"éé", 3, "é"}, {"é", 1, ""}, {"abc", -1, ""}, {"", 0, ""}} {
		if got := Head(tc.s, tc.n); got != tc.want {
			t.Errorf("Head(%q, %d) = %q, want %q", tc.s, tc.n, got, tc.want)
		}
	}
}

func TestColumn(t *testing.T) {
	for s, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abc…", "ééééé": "ééé…"} {
		if got := Column(s, 4); got != want {
			t.Errorf("Column(%q, 4) = %q, want %q", s, got, want)
		}
	}
}

func TestExcerpt(t *testing.T) {
	for s, want := range map[string]string{"abc": "abc", "abcd": "abc… (4 bytes)", "éé": "é… (4 bytes)"} {
		if got := Excerpt(s, 3); got != want {
			t.Errorf("Excerpt(%q, 3) = %q, want %q", s, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got, want := OneLine("a\nb\r\tc\x00d\x7fe\u0085f\u2028g\u2029h é"), "a b  c d e f g h é"; got != want {
		t.Errorf("OneLine = %q, want %q", got, want)
	}
}

func TestShell(t *testing.T) {
	words := map[string]string{
		"web-1.pod_2": "web-1.pod_2", "a b": `'a b'`, "": `''`, "it's": `'it'\''s'`, "$(id)": `'$(id)'`, "a;b": `'a;b'`, "=ls": `'=ls'`,
		"a\nb'": `$'a\012b\''`, "\x03\x1b[201~": `$'\003\033[201~'`, "a\u202eb": `$'a\342\200\256b'`, "caf\u00e9": `'café'`,
	}
	for word, want := range words {
		if got := Shell(word); got != want {
			t.Errorf("Shell(%q) = %s, want %s", word, got, want)
		}
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash to ask")
	}
	for word := range words {
		out, err := exec.Command(bash, "-c", "printf %s "+Shell(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("bash reads %s as %q, %v", Shell(word), out, err)
		}
	}
}

func FuzzClip(f *testing.F) {
	f.Add("abc", 3)
	f.Add("\xff\xff\xff\xff\xff", 4)
	f.Add("é\xff€", 5)
	f.Fuzz(func(t *testing.T, s string, n int) {
		n = 3 + max(0, n)%4096
		got := Clip(s, n)
		if len(got) > n || !utf8.ValidString(got) {
			t.Errorf("Clip(%q, %d) = %q", s, n, got)
		}
		if utf8.ValidString(s) && len(s) <= n && got != s {
			t.Errorf("Clip(%q, %d) = %q, and it fits", s, n, got)
		}
		if head := Head(s, n); !strings.HasPrefix(s, head) || len(head) > n {
			t.Errorf("Head(%q, %d) = %q", s, n, head)
		}
		if line := OneLine(got); strings.ContainsFunc(line, isControl) || !utf8.ValidString(line) {
			t.Errorf("OneLine(%q) = %q", got, line)
		}
	})
}
