package token

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	for token, want := range map[string]string{
		"":                      "0 characters, want 16 or more",
		"0123456789abcde":       "15 characters, want 16 or more",
		"0123456789abcdef":      "",
		strings.Repeat("x", 32): "",
		strings.Repeat("x", 33): "33 characters, want 32 or fewer",
		"0123456789 abcdef":     "byte 10 is not",
		"0123456789abcdef\n":    "byte 16 is not",
		"0123456789abcdefé":     "byte 16 is not",
		"0123456789abcdef\x7f":  "byte 16 is not",
	} {
		err := Check(token, 16, 32)
		if err == nil && want != "" || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", token, err, want)
		}
		if err != nil && token != "" && strings.Contains(err.Error(), token) {
			t.Errorf("the error contains %q: %v", token, err)
		}
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	read := func(content string) (string, error) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadFile(file, 16, 32)
	}
	if got, err := read(" 0123456789abcdef\r\n"); got != "0123456789abcdef" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	for _, content := range []string{"", "short", "0123456789 abcdef", strings.Repeat("x", 1<<20)} {
		if got, err := read(content); err == nil || got != "" || !strings.Contains(err.Error(), file) {
			t.Errorf("%.20q gives %q and %v, want an error that names the file", content, got, err)
		}
	}
	if _, err := ReadFile(dir, 16, 32); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
	if _, err := ReadFile(file+"-2", 16, 32); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestBearer(t *testing.T) {
	for _, test := range []struct {
		values []string
		token  string
		given  bool
	}{
		{nil, "", false},
		{[]string{""}, "", true},
		{[]string{"Bearer"}, "", true},
		{[]string{"Bearer "}, "", true},
		{[]string{"Bearer abc"}, "abc", true},
		{[]string{"bearer   abc "}, "abc", true},
		{[]string{"Bearer\tabc"}, "", true},
		{[]string{"Basic abc"}, "", true},
		{[]string{"abc"}, "", true},
		{[]string{"Bearer abc", "Bearer abc"}, "", true},
		{[]string{"Bearer " + strings.Repeat("x", MaxBearer)}, strings.Repeat("x", MaxBearer), true},
		{[]string{"Bearer " + strings.Repeat("x", MaxBearer+1)}, "", true},
	} {
		if token, given := Bearer(http.Header{"Authorization": test.values}); token != test.token || given != test.given {
			t.Errorf("%.40q: %.20q, %v; want %.20q, %v", test.values, token, given, test.token, test.given)
		}
	}
}

// A request is authorized only when its header has the token.
func FuzzAuthorized(f *testing.F) {
	for _, header := range []string{"", "Bearer", "Bearer 0123456789abcdef", "bearer  0123456789abcdef", "Basic 0123456789abcdef", "Bearer 0123456789abcdef "} {
		f.Add(header, "0123456789abcdef")
	}
	f.Fuzz(func(t *testing.T, header, token string) {
		if Check(token, 16, 1024) != nil {
			return
		}
		scheme, rest, _ := strings.Cut(header, " ")
		want := strings.EqualFold(scheme, "bearer") && strings.Trim(rest, " ") == token
		given, _ := Bearer(http.Header{"Authorization": {header}})
		if DigestOf(given).Equal(DigestOf(token)) != want {
			t.Errorf("header %q with token %q: authorized is %v", header, token, !want)
		}
	})
}
