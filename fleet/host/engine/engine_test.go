package engine

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fake []string

func (f fake) MIMETypes() []string { return f }
func (fake) Load(context.Context, []byte, Config) (Program, error) {
	return nil, errors.New("not here")
}

func TestRegistry(t *testing.T) {
	r, err := NewRegistry(fake{"text/x-a", "text/x-b"}, fake{"text/x-c"})
	if err != nil {
		t.Fatal(err)
	}
	for mime, found := range map[string]bool{"text/x-a": true, "Text/X-C; charset=utf-8": true, "text/x-d": false, "": false, "/": false} {
		if _, err := r.Lookup(mime); (err == nil) != found || !found && !errors.Is(err, ErrNoEngine) {
			t.Errorf("%q: %v", mime, err)
		}
	}
	if _, err := r.Lookup("text/x-d"); !strings.Contains(err.Error(), "the host has engines for text/x-a, text/x-b, text/x-c") {
		t.Errorf("the error does not list the types: %v", err)
	}
	for want, engines := range map[string][]Engine{
		"both take text/x-a": {fake{"text/x-a"}, fake{"text/x-a"}},
		"not a MIME type":    {fake{"Text/X-A"}},
		"without parameters": {fake{"text/x-a; charset=utf-8"}},
		"engine 0 is nil":    {nil},
	} {
		if _, err := NewRegistry(engines...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	l := Limits{Output: 10, Outputs: 2}.WithDefaults()
	for want, outputs := range map[string][]Output{
		"":                           {{Topic: "a.b", Data: []byte("123456")}},
		"output limit of 10":         {{Data: []byte("12345678901")}},
		"outputs limit of 2":         make([]Output, 3),
		`"a b" is not a topic`:       {{Topic: "a b"}},
		`"a b" is not a header name`: {{Header: map[string][]string{"a b": {""}}}},
		"contains a line break":      {{Header: map[string][]string{"a": {"\n"}}}},
		`"a..b" is not a topic`:      {{Topic: "a..b"}},
		"output 1: \">\" is not a t": {{}, {Topic: ">"}},
	} {
		if err := l.Check(outputs); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (Limits{Time: -1, Memory: -1}).Validate(); err == nil || !strings.Contains(err.Error(), "time") || !strings.Contains(err.Error(), "memory") {
		t.Errorf("Validate: %v", err)
	}
}

func TestPrinter(t *testing.T) {
	var lines []string
	p := NewPrinter(Config{Limits: Limits{Output: 12}, Log: func(line string) { lines = append(lines, line) }})
	_, _ = p.Write([]byte("a\nb"))
	_, _ = p.Write([]byte("c\n\xff"))
	p.Close()
	if got := strings.Join(lines, "|"); got != "a|bc|\uFFFD" || p.Err() != nil {
		t.Errorf("%q, %v", got, p.Err())
	}
	if _, err := p.Write(make([]byte, 100)); !errors.Is(err, ErrLimit) || !errors.Is(p.Err(), ErrLimit) {
		t.Errorf("too much: %v", err)
	}
}

// FuzzNames checks that no key and no topic makes the functions panic, and that
// neither may contain a character with a meaning in NATS.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"a", "a.b", "", ".", "a..b", "*", ">", "a b", "a\n", "ä", strings.Repeat("a", 600)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if (CheckKey(name) == nil || ValidTopic(name)) && (name == "" || strings.ContainsAny(name, " *>\r\n\x00") || strings.Contains(name, "..")) {
			t.Errorf("%q is taken", name)
		}
	})
}
