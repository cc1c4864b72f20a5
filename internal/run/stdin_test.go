package run

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestStdinIsInherited(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-lifecycle.health-addr=off", "--", "/bin/cat")
	cmd.Env = append(os.Environ(), "LIFECYCLE_RUN_TESTED=run")
	cmd.Stdin = strings.NewReader("through and through")
	out, err := cmd.Output()
	if err != nil || string(out) != "through and through" {
		t.Errorf("%q, %v", out, err)
	}
}
