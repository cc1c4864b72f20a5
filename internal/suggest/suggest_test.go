package suggest

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNearestIsWhatWasProbablyMeant(t *testing.T) {
	words := []string{"drain_interval", "drain_min", "grace", "id"}
	for word, want := range map[string]string{
		"drain_intervall": "drain_interval", // one extra letter
		"drian_min":       "drain_min",      // two swapped
		"grac":            "grace",          // one missing
		"grase":           "grace",          // one wrong
		"ID":              "",               // no letter is right
		"gr":              "",
		"":                "",
		"linger":          "",
	} {
		if got := Nearest(word, words); got != want {
			t.Errorf("Nearest(%q) is %q, want %q", word, got, want)
		}
	}
	if got := Nearest("any", nil); got != "" {
		t.Errorf("without candidates Nearest returns %q", got)
	}
}
