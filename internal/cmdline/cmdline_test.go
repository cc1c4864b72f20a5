package cmdline

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCommandLines(t *testing.T) {
	for name, tt := range map[string]struct {
		words           []string
		program, script int
		shell           string
		wrapped         string
		prefix          string
	}{
		"nothing":          {script: -1},
		"a program":        {words: []string{"/app", "-c", "x"}, script: -1, wrapped: "/app -c x"},
		"an init":          {words: []string{"/sbin/tini", "-s", "--", "app"}, program: 3, script: -1, wrapped: "/sbin/tini -s -- app"},
		"an init alone":    {words: []string{"tini", "-s"}, program: 2, script: -1, wrapped: "tini -s"},
		"a shell":          {words: []string{"/bin/sh", "-c", "app; true"}, script: 2, shell: "sh", wrapped: "/bin/sh -c app; true"},
		"one that is gone": {words: []string{"sh", "-c", "cd /x &&\nexec\tapp"}, script: 2, wrapped: "sh -c cd /x &&\nexec\tapp"},
		"another exec":     {words: []string{"sh", "-c", "docker-exec app"}, script: 2, shell: "sh", wrapped: "sh -c docker-exec app"},
		"a shell of options": {
			words:   []string{"dumb-init", "bash", "--login", "-eo", "pipefail", "-c", "x"},
			program: 1,
			script:  6,
			shell:   "bash",
			wrapped: "dumb-init bash --login -eo pipefail -c x",
		},
		"a shell's file":   {words: []string{"sh", "run.sh", "-c"}, script: -1, wrapped: "sh run.sh -c"},
		"lifecycle-run":    {words: []string{"/lifecycle-run", "-addr", ":1", "--", "app", "--", "x"}, script: -1, wrapped: "app -- x", prefix: PrefixRun},
		"without dashes":   {words: []string{"tini", "lifecycle-run", "-addr=:1", "sh", "-c", "x"}, program: 1, script: -1, wrapped: "sh -c x", prefix: PrefixRun},
		"lifecyclectl run": {words: []string{"lifecyclectl", "run", "--", "app"}, script: -1, wrapped: "app", prefix: PrefixCtl},
		"another lifecyclectl": {
			words: []string{"lifecyclectl", "watch", "run"}, script: -1, wrapped: "lifecyclectl watch run",
		},
	} {
		if got := Program(tt.words); got != tt.program {
			t.Errorf("%s: the program is word %d, want %d", name, got, tt.program)
		}
		if got := Script(tt.words); got != tt.script {
			t.Errorf("%s: the script is word %d, want %d", name, got, tt.script)
		}
		if got := Shell(tt.words); got != tt.shell {
			t.Errorf("%s: the shell is %q, want %q", name, got, tt.shell)
		}
		program, prefix := Wrapped(slices.Clone(tt.words))
		if got := strings.Join(program, " "); got != tt.wrapped || prefix != tt.prefix {
			t.Errorf("%s: it runs %q with %q, want %q with %q", name, got, prefix, tt.wrapped, tt.prefix)
		}
	}
}

func TestSleep(t *testing.T) {
	for line, want := range map[string]time.Duration{
		"sleep 3":                     3 * time.Second,
		"sh -c sleep 5 && sleep 0.5s": 5500 * time.Millisecond,
		"/bin/sleep 1m;":              time.Minute,
		"sleep 99999999999d":          longest,
		"sleep infinity":              -1,
		"sleep 1.2.3":                 -1,
		"asleep 3":                    -1,
		"":                            -1,
	} {
		d, any := Sleep(strings.Fields(line))
		if !any {
			d = -1
		}
		if d != want {
			t.Errorf("%q sleeps %v, want %v", line, d, want)
		}
	}
}
