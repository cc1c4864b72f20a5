//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// The curl commands of the README work as they are printed there, apart from the ports,
// and answer what the comment beside them says.
func TestReadmeCommandsWork(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("there is no curl: install it to run this test")
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, nil, quick...)
	url, health := c.addresses(t)
	ports := strings.NewReplacer("localhost:8080", strings.TrimPrefix(url, "http://"), "localhost:8081", strings.TrimPrefix(health, "http://"))
	commands := regexp.MustCompile(`(?m)^(curl [^#\n]+?)(?:\s{2,}#\s*(.*))?$`).FindAllStringSubmatch(string(text), -1)
	if len(commands) < 5 {
		t.Fatalf("only %d commands were found: does the pattern still match?", len(commands))
	}
	answered := regexp.MustCompile(`\{".*\}$`)
	for _, m := range commands {
		line := ports.Replace(m[1])
		if strings.Contains(line, "/events") {
			line += " --max-time 1 || [ $? = 28 ]" // a stream has no end: curl gives up after a second
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "curl --fail --silent --show-error "+strings.TrimPrefix(line, "curl ")).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", m[1], err, out)
			continue
		}
		if want := answered.FindString(m[2]); want != "" && strings.TrimSpace(string(out)) != want {
			t.Errorf("%s answers %s, and the README says %s", m[1], out, want)
		}
	}
	c.signal(t, syscall.SIGTERM)
	if status := c.exit(t); status != 0 {
		t.Errorf("it ends with the status %d", status)
	}
}
