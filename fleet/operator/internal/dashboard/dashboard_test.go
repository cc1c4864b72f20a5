package dashboard

import (
	"html"
	"net/url"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A breakable name keeps its text and adds no other markup.
func FuzzBreakable(f *testing.F) {
	for _, seed := range []string{"", "a", "acme.drones-1/x_y:z", "....", `<img src=x onerror="alert(1)">.`, "ä.ö\x00\xff", "<wbr>.<wbr>"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		parts := strings.Split(string(breakable(name)), "<wbr>")
		var text strings.Builder
		for _, p := range parts {
			if strings.ContainsAny(p, `<>"'`) {
				t.Errorf("%q: %q is markup", name, p)
			}
			text.WriteString(html.UnescapeString(p))
		}
		if want := strings.ReplaceAll(name, "\x00", "\uFFFD"); text.String() != want {
			t.Errorf("%q became %q", name, text.String())
		}
	})
}

func TestPreview(t *testing.T) {
	for data, want := range map[string]string{
		"":                     "",
		"hello":                "hello",
		"aaaé":                 "aaaé", // é is two bytes, across the fourth
		"cut \xe8\xaa":         "cut ",
		"\xff\xfe":             "ff fe",
		"not text \xff\x00abc": "6e 6f 74 20 74 65 78 74 20 ff 00 61 62 63",
	} {
		if got := preview([]byte(data)); got != want {
			t.Errorf("%q became %q, want %q", data, got, want)
		}
	}
}

// The address of a page chooses one of the fixed sentences and the numbers in it, and adds
// no text of its own.
func TestOutcomeSaysOnlyItsOwnSentences(t *testing.T) {
	for query, want := range map[string]string{
		"":                                "",
		"done=nothing+of+ours":            "",
		"done=stop":                       "The worker is stopped.",
		"done=stop&n=12":                  "The worker is stopped.",
		"done=redrive&n=12":               "Dead letters given to the worker again: 12.",
		"done=redrive&n=<b>all</b>":       "Dead letters given to the worker again: 0.",
		"done=recover&n=3&failed=1":       "Recovery has run. Workers that run here: 3. Workers that could not be loaded: 1.",
		"done=recover&n=%25s&failed=call": "Recovery has run. Workers that run here: 0. Workers that could not be loaded: 0.",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if got := outcome(q); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}

// Every action calls a method of the contract, says what it is about, what will happen and what
// has happened, and has a button.
func TestEveryActionHasAnOutcome(t *testing.T) {
	methods := map[string]bool{}
	for _, file := range operatorv1.Files() {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				m := file.Services().Get(i).Methods().Get(j)
				methods[string(m.Parent().Name())+"."+string(m.Name())] = true
			}
		}
	}
	for name, a := range actions {
		asks := a.ask != nil || a.Title != "" && len(a.Does) > 0 && a.Button != ""
		if !methods[a.method] || a.on == nil || a.do == nil || a.done == "" || !asks || strings.Count(a.done, "%d") > len(numberKeys) {
			t.Errorf("the action %s is not whole: %+v", name, a)
		}
	}
}
