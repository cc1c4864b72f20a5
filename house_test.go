package lifecycle_test

import (
	"os"
	"os/exec"
	"testing"
)

// api.txt lists the exported names of the root package, so that a review sees
// each change. -update writes the file.
func TestExportedNamesAreKnown(t *testing.T) {
	out, err := exec.Command("go", "doc", "-short", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("api.txt", out, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("api.txt")
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != string(want) {
		t.Errorf("the exported names are not those of api.txt; if the change is intended: go test -run %s . -update\n%s", t.Name(), out)
	}
}
