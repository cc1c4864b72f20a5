package operator

import (
	"strings"
	"testing"
)

// A diff is in the unified format, with the names of the versions, and says how many lines
// were added and removed, also of lines that begin with a sign of the format.
func TestUnifiedDiff(t *testing.T) {
	before := "a\nb\n+c\n--- d\ne\n"
	after := "a\nb\nc\n+++ d\ne\nf"
	text, added, removed := unifiedDiff("sha256:1", "sha256:2", []byte(before), []byte(after))
	if !strings.HasPrefix(text, "--- sha256:1\n+++ sha256:2\n@@ -1,5 +1,6 @@\n") || added != 3 || removed != 2 {
		t.Errorf("%d added, %d removed:\n%s", added, removed, text)
	}
	for _, part := range []string{"\n a\n", "\n-+c\n", "\n---- d\n", "\n+c\n", "\n++++ d\n", "\n+f\n\\ No newline at end of file\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
}
