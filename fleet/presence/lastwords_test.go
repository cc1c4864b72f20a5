package presence

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

const panicText = `panic: no such table

goroutine 34 [running]:
panic({0x1, 0x2})
	/usr/local/go/src/runtime/panic.go:787 +0x132
github.com/pleme-io/shop/poll.(*Poller).run(0xc000123)
	/src/poll/poll.go:12 +0x1d
created by main.main in goroutine 1
	/src/main.go:9 +0x25
`

// What a file of last words says, also one that is not whole, or of another service.
func TestLastWords(t *testing.T) {
	me := life{Service: "shop", Process: "shop.web-2", Boot: "b"}
	head := func(l life) string {
		text, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	before := head(life{Service: "shop", Process: "shop.web-1", StartedAt: time.Unix(1, 5), Boot: "b"})
	for name, test := range map[string]struct{ content, class, cause string }{
		"no file before":          {"", "", ""},
		"it said its end itself":  {"\n", "", ""},
		"not of this library":     {"hello\n" + panicText, "", ""},
		"cut in the head":         {before[:20], "", ""},
		"of another service":      {head(life{Service: "till", Process: "till.web-1"}), "", ""},
		"a kill":                  {before, EndKilled, "it did not panic"},
		"a panic":                 {before + panicText, EndPanicked, "panic: no such table in github.com/pleme-io/shop/poll.(*Poller).run (poll.go:12)"},
		"a panic that is cut":     {before + panicText[:60], EndPanicked, "panic: no such table"},
		"a panic without frames":  {before + "panic: a\n\ngoroutine 1 [running]:\n", EndPanicked, "panic: a"},
		"a fatal error":           {before + "fatal error: concurrent map writes\n", EndPanicked, "fatal error: concurrent map writes"},
		"memory":                  {before + "runtime: cannot allocate\nfatal error: runtime: cannot allocate memory\n", EndOOM, "cannot allocate memory"},
		"SIGQUIT":                 {before + "SIGQUIT: quit\nPC=0x1\n", EndKilled, "SIGQUIT: quit"},
		"another run of the host": {head(life{Service: "shop", Process: "shop.web-1", Boot: "a"}), EndLost, "its host was started anew"},
		"a long message":          {before + "panic: " + strings.Repeat("x", 10_000), EndPanicked, "panic: xxx"},
	} {
		e := readWords(test.content, time.Now().Add(-time.Minute), me)
		switch {
		case test.class == "":
			if e != nil {
				t.Errorf("%s: %+v, want nothing", name, e)
			}
		case e == nil:
			t.Errorf("%s: nothing, want %s", name, test.class)
		case e.To != test.class || !strings.Contains(e.Cause, test.cause) || len(e.Cause) > 2*maxReason || e.Process != "shop.web-1" || e.Kind != "lost":
			t.Errorf("%s: %+v, want %s, %q", name, e, test.class, test.cause)
		case strings.Count(test.content, "\n") > 1 && e.Waited < 50*time.Second:
			t.Errorf("%s: it happened %v ago", name, e.Waited)
		}
	}
}
