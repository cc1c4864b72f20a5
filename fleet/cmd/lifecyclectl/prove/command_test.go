package prove

import (
	"testing"
)

func TestOnlyReleasesHaveAnImage(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "ghcr.io/pleme-io/lifecyclectl:1.2.3", "(devel)": "", "unknown": "", "v1.2.3+dirty": "", "v0.0.0-20260101000000-abcdefabcdef": "", "": "",
	} {
		if got := publishedImage(version); got != want {
			t.Errorf("%q: %q, want %q", version, got, want)
		}
	}
}
