package prove

import (
	"io"
	"strings"
	"testing"
)

// The command of the Job says what it lacks, as every other command does.
func TestLoadWantsItsPlan(t *testing.T) {
	cmd := runLoad()
	cmd.SetArgs([]string{})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "which PLAN?") {
		t.Errorf("error is %v", err)
	}
}

func TestOnlyReleasesHaveAnImage(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "ghcr.io/pleme-io/lifecyclectl:1.2.3", "(devel)": "", "unknown": "", "v1.2.3+dirty": "", "v0.0.0-20260101000000-abcdefabcdef": "", "": "",
	} {
		if got := publishedImage(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}
