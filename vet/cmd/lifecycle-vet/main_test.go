package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clean = "../../testdata/clean.yaml"
	root  = "../../.."
)

func run(stdin io.Reader, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run(context.Background(), args, stdin, &out, &errs)
	return code, out.String(), errs.String()
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the pipe broke") }

func TestExitStatuses(t *testing.T) {
	manifest, err := os.ReadFile(clean)
	if err != nil {
		t.Fatal(err)
	}
	short := strings.Replace(string(manifest), "PeriodSeconds: 30", "PeriodSeconds: 10", 1)
	for name, tt := range map[string]struct {
		stdin  io.Reader
		args   []string
		code   int
		stdout string
		stderr string
	}{
		"clean":       {nil, []string{clean}, exitOK, "1 workload looked at: 0 errors", ""},
		"findings":    {strings.NewReader(short), []string{"-"}, exitFindings, "-:15:7: error: grace-too-short", ""},
		"no file":     {nil, []string{"none.yaml"}, exitUsage, "", "none.yaml"},
		"no manifest": {nil, nil, exitUsage, "", "no manifest is given"},
		"no flag":     {nil, []string{"--bad"}, exitUsage, "", "--bad"},
		"broken pipe": {broken{}, []string{"-"}, exitUsage, "", "read -: the pipe broke"},
		"rules":       {nil, []string{"--rules"}, exitOK, "grace-too-short", ""},
		"version":     {nil, []string{"--version"}, exitOK, "lifecycle-vet version ", ""},
	} {
		code, stdout, stderr := run(tt.stdin, append([]string{"lifecycle-vet"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) || (tt.stderr == "") != (stderr == "") {
			t.Errorf("%s: exit status %d, %q, %q", name, code, stdout, stderr)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := Run(ctx, []string{"lifecycle-vet", clean}, nil, io.Discard, io.Discard); code != exitInterrupted {
		t.Errorf("interrupted: exit status %d", code)
	}
}

// The help of a plugin shows the words with which kubectl's user calls it.
func TestPluginOfKubectl(t *testing.T) {
	for program, name := range map[string]string{"/usr/bin/lifecycle-vet": "lifecycle-vet", "/usr/bin/kubectl-lifecycle_vet": "kubectl lifecycle-vet", "kubectl-lifecycle_vet.exe": "kubectl lifecycle-vet"} {
		_, help, _ := run(nil, program, "--help")
		if !strings.Contains(help, "\n  "+name+" MANIFEST... [--config FILE]") || !strings.Contains(help, "\n  "+name+" deployment.yaml") || strings.Contains(help, "lifecyclectl") {
			t.Errorf("%s: %s", program, help)
		}
	}
}

// The script of the action and of the hook builds the program and runs it in the
// caller's folder, with its exit status.
func TestRunScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script needs a shell")
	}
	script, err := filepath.Abs("../../run")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(script, "testdata/clean.yaml", "--fail-on", "info")
	cmd.Dir = "../.."
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFindings || !strings.Contains(string(out), "testdata/clean.yaml:15:7: info: grace-undeclared") {
		t.Errorf("%v\n%s", err, out)
	}
}

// The hook and the action name the script, and only arguments that the program has.
func TestHookAndAction(t *testing.T) {
	read := func(name string, into any) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		if err := d.Decode(into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var hooks []struct {
		ID, Name, Description, Language, Entry, Exclude string
		Types                                           []string
		RequireSerial                                   bool `yaml:"require_serial"`
	}
	read(".pre-commit-hooks.yaml", &hooks)
	if len(hooks) != 1 || hooks[0].Language != "script" || !hooks[0].RequireSerial {
		t.Fatalf("%+v", hooks)
	}
	leftOut := regexp.MustCompile(hooks[0].Exclude)
	for file, want := range map[string]bool{".golangci.yml": true, ".github/workflows/test.yaml": true, "deploy/.tool/x.yaml": true, "deploy/web.yaml": false, "web.prod.yaml": false} {
		if leftOut.MatchString(file) != want {
			t.Errorf("the hook leaves out %s: %v, want %v", file, !want, want)
		}
	}
	if info, err := os.Stat(filepath.Join(root, hooks[0].Entry)); err != nil || info.Mode()&0o111 == 0 && runtime.GOOS != "windows" {
		t.Errorf("the hook's entry is no program: %v", err)
	}
	var action struct {
		Name, Description string
		Inputs            map[string]struct {
			Description, Default string
			Required             bool
		}
		Runs struct {
			Using string
			Steps []struct {
				Uses, Shell, Run string
				With, Env        map[string]string
			}
		}
	}
	read("vet/action.yml", &action)
	step := action.Runs.Steps[len(action.Runs.Steps)-1]
	for name := range action.Inputs {
		if !has(step.Env, "${{ inputs."+name+" }}") {
			t.Errorf("no variable has the input %s", name)
		}
	}
	_, help, _ := run(nil, "lifecycle-vet", "--help")
	for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(step.Run, -1) {
		if flag != "--" && !strings.Contains(help, flag+" ") {
			t.Errorf("the program has no %s", flag)
		}
	}
}

func has(m map[string]string, want string) bool {
	for _, v := range m {
		if v == want {
			return true
		}
	}
	return false
}
