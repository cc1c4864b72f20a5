//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// runs are the lines of the pages that are run, and where. A line that no pattern here
// and no entry of excused matches fails the test.
var runs = []struct {
	where   string
	line    *regexp.Regexp
	status  int // the exit status that the page promises or, without a word, 0
	stopped bool
}{
	{
		where: "help",
		line:  regexp.MustCompile(`^lifecyclectl .*(\[flags\]|\[ARG\.\.\.\]|(describe|stacks) ID|contexts (list|use NAME)|explain \[WORD\]|logout|version)$`),
	},
	{where: "site", line: regexp.MustCompile(`lifecyclectl .*--if-match '"42"'`), status: cli.ExitConflict}, // of an entity that is at another revision
	{where: "site", line: regexp.MustCompile(`^lifecyclectl list drone-survey .*--watch`), stopped: true},
	{where: "site", line: regexp.MustCompile(`^lifecyclectl processes list -o json`)},
	{where: "site", line: regexp.MustCompile(`lifecyclectl (get|list|patch|transition|dead-letters|redrive) (drone-survey|thumbs)|lifecyclectl discard thumbs --all --dry-run`)},
	{where: "site", line: regexp.MustCompile(`^lifecyclectl events .*--watch`), stopped: true},
	{where: "site", line: regexp.MustCompile(`^lifecyclectl (audit|events|explain|doctor --service)`)},
	{where: "site", line: regexp.MustCompile(`^source <\(lifecyclectl`)},
	{where: "deploy", line: regexp.MustCompile(`^kustomize build kustomize/base`), status: cli.ExitFindings}, // it shows a finding
	{where: "deploy/kustomize", line: regexp.MustCompile(`^kustomize build overlays/production`)},
	{where: "deploy/kustomize/overlays/production", line: regexp.MustCompile(`^kustomize build \.`)},
	{where: "files", line: regexp.MustCompile(`^(helm template web chart \| lifecyclectl|lifecyclectl vet deployment.yaml)`)},
	{where: "site", line: regexp.MustCompile(`^curl .*If-Match: "42"`), status: 22}, // curl's status for an error of HTTP
	{where: "site", line: regexp.MustCompile(`^curl .*\$OPS/watch/`), stopped: true},
	{where: "site", line: regexp.MustCompile(`^curl .*\$OPS/`)},
	{where: "service", line: regexp.MustCompile(`^curl .*/events`), stopped: true},
	{where: "service", line: regexp.MustCompile(`^curl `)},
	{where: "network", line: regexp.MustCompile(`^go run \./examples/`), stopped: true},
}

// excused are the lines that are not run here, with the reason.
var excused = []struct{ line, why string }{
	{"go get github.com/pleme-io/lifecycle-go", "make release-check runs it in a module of a stranger, with the version that it releases"},
	{"go install github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl@latest", "make release-check runs it on a bare machine, with the version that it releases"},
	{"go install github.com/pleme-io/lifecycle-go/vet/cmd/lifecycle-vet@latest", "make release-check runs it on a bare machine, with the version that it releases"},
	{"go install github.com/pleme-io/lifecycle-go/cmd/lifecycle-run@latest", "make release-check runs it on a bare machine, with the version that it releases"},
	{"go install -ldflags='-s -w'", "it is an option of the command above it"},
	{"go install ./fleet/cmd/lifecyclectl", "it installs into the reader's folder; the tests here build the package"},
	{"go install ./vet/cmd/lifecycle-vet", "it installs into the reader's folder; the tests of vet build the package"},
	{"go run ./tools/guarantees R13", "TestPrint of tools/guarantees prints a statement"},
	{"go run ./tools/guarantees", "TestPrint of tools/guarantees prints a statement"},
	{"go install github.com/zegl/kube-score/cmd/kube-score@v1.20.0", "another project's command, from the network"},
	{"lifecyclectl prove deployment/web", "only a released version knows its image: TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs the lines that name one"},
	{"lifecyclectl prove deployment/web --image $IMAGE --get /healthz --post /orders --stream /events", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"lifecyclectl prove deployment/web --image $IMAGE -n shop --yes -o json", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"lifecyclectl processes list --problems --watch", "it prints nothing while all is well: TestScripts runs it"},
	{"lifecyclectl doctor", "its exit status depends on the fleet: TestFaultsAreNamed runs it"},
	{"lifecyclectl doctor --statusz http://10.1.2.3:8081/statusz", "the address belongs to the reader's pod: TestDoctorOfOneProcess runs it"},
	{"lifecyclectl transition drone-survey aborted --selector phase=planning,org=acme --dry-run", "the entities are the reader's: TestScripts moves many"},
	{"lifecyclectl bundle --logs --stacks --config", "it writes a file into the reader's folder: TestBundle makes archives"},
	{`lifecyclectl redrive thumbs 18 --data-file fixed.json --note "a typo"`, "the file is the reader's: TestScripts edits a dead letter"},
	{`lifecyclectl discard thumbs 18 --note "a test message"`, "it asks before it removes: TestScripts discards with --yes"},
	{"lifecyclectl workers diff thumbs --from sha256:… --to sha256:…", "the versions are the reader's: TestScripts compares two"},
	{"lifecyclectl bundle --since 2h --file incident.tar.gz", "it writes a file into the reader's folder: TestBundle makes archives"},
	{"lifecyclectl processes drain --selector service=web,version!=1.2.4 --dry-run", "the service is the reader's: TestScripts drains by a selector"},
	{`lifecyclectl processes restart-unit web-7d4b9-x2x4z pool/w1 --reason "it lost its lease"`, "the process is the reader's: TestScripts restarts a unit"},
	{"lifecyclectl processes config web-7d4b9-x2x4z", "the process is the reader's: TestScripts reads a configuration"},
	{"lifecyclectl logs web-7d4b9-x2x4z --limit 50", "the process is the reader's: TestScripts reads logs"},
	{"lifecyclectl logs web-7d4b9-x2x4z --follow", "the process is the reader's: TestScripts reads logs"},
	{
		"lifecyclectl workers create thumbs --type application/wasm --topic images.new --code thumbs.wasm",
		"thumbs.wasm is the reader's program; TestScripts creates workers",
	},
	{"lifecyclectl workers create --type application/javascript --topic orders --group shop --url https://example.com/orders.js --digest sha256:…", "the URL and the digest are the reader's"},
	{`lifecyclectl workers apply --file workers.yaml --dry-run`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers apply --file workers.yaml`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers diff --file workers.yaml`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers sign --file workers.yaml --key code.key > workers.sig`, "the key is the reader's: TestSign signs with one"},
	{`lifecyclectl workers apply --file workers.yaml --signatures workers.sig`, "the signatures are the reader's: TestSign reads such a file"},
	{`lifecyclectl workers dev workers.yaml --message "one two" --message three`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers dev workers.yaml --id counter --messages samples.txt --env TOKEN=x`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{"lifecyclectl workers bus --config service.yaml > tenants.conf", "the configuration is the reader's: TestBusIsTheShippedOne makes one"},
	{`lifecyclectl workers logs thumbs --limit 20`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers logs thumbs --follow`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers state counter`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers state counter total`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers timers counter`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers cancel-timer counter report --key alice`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers test counter --data "one two"`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`lifecyclectl workers test counter --data "one two" --code counter.js`, "the worker is the reader's: the script deploy of TestScripts deploys one and looks into it"},
	{`go run ./procpool/cmd/conformance -slow '{"a payload":"that takes long"}' -stream '{"a payload":"that streams 8 MB"}' -- ./my-worker --its arguments`, "my-worker is the reader's; procpool/conformance tests the suite"},
	{"helm template web chart | docker run --rm --interactive ghcr.io/pleme-io/lifecycle-vet -", "the image is in a registry; the tests of vet run the program"},
	{"lifecyclectl workers promote counter", "the worker is the reader's: TestDeploymentBySpec of fleet/operator promotes one"},
	{"lifecyclectl workers rollback counter", "the worker is the reader's: TestDeploymentBySpec of fleet/operator ends a canary"},
	{"openssl genpkey -algorithm ed25519 -out code.key", "another project's command; TestKeysInFiles of fleet/host/codesign reads what it writes"},
	{"openssl pkey -in code.key -pubout", "another project's command; TestKeysInFiles of fleet/host/codesign reads what it writes"},
	{"lifecyclectl login --server https://ops.example.com", "the server and its provider are the reader's: TestLoginAtARealProvider"},
	{"lifecyclectl login --server https://ops.example.com --device", "the server and its provider are the reader's: TestLoginWithACode"},
	{"lifecyclectl logout --server https://ops.example.com", "the server and its provider are the reader's: TestLoginAtARealProvider"},
	{"helm template . | lifecyclectl vet -", "the chart is the reader's; the line with the chart of a page is run"},
	{"docker build --file examples/service/Dockerfile --tag lifecycle-service:0.1.0 .", "TestImage of examples/service runs it with an engine"},
	{"kubectl apply --kustomize deploy/kustomize/overlays/dev", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"kubectl create secret generic operator-key --from-file=operator.key", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"kubectl create configmap lifecycle-operators --from-file=operators.pem", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"helm upgrade --install web deploy/helm/lifecycle-service --set drainSeconds=15", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"helm upgrade --install web deploy/helm/lifecycle-service --set image.repository=registry.example/web --set drainSeconds=15", "TestPrintedCommandsWorkOnTheCluster of deploy/e2e runs it"},
	{"helm upgrade --install web deploy/helm/lifecycle-service --set serviceMonitor.enabled=true --set rolloutGate.argoRollouts=true", "the cluster of the tests has no Argo Rollouts: TestGateFailsABadRollout of deploy renders it and runs its query"},
	{"helm test web", "its pod asks the Service by name, and the cluster of the tests resolves no names"},
	{"lifecyclectl workflows check drone-survey --table table.json", "table.json is the reader's table: TestScripts checks tables"},
	{`lifecyclectl workflows pause drone-survey m-17 --reason "the pilot is ill"`, "the entity is the reader's: TestScripts pauses one"},
	{`lifecyclectl workflows resume drone-survey m-17 --note "she is back"`, "the entity is the reader's: TestScripts resumes one"},
	{"lifecyclectl workflows backup MISSIONS missions-monday", "it writes a folder: TestScripts backs up and restores"},
	{"lifecyclectl workflows restore missions-monday --check", "it reads that folder: TestScripts backs up and restores"},
	{"lifecyclectl workflows restore missions-monday", "it needs another NATS: TestScripts backs up and restores"},
	{"mkdir shop && cd shop", "TestTutorial of the root module makes the folder"},
	{"go mod init shop", "TestTutorial of the root module makes the module"},
	{"go run .", "TestTutorial of the root module runs the program of the page"},
	{
		"lifecycle-run --listen :8080 --ready http://127.0.0.1:8080/ --restart always -- gunicorn app:app",
		"TestForeignProgramsAreReplaced of internal/run runs gunicorn so, on a port of its own",
	},
	{"kill -HUP $(pidof lifecycle-run) # a new release of the program: replace it", "TestTheProgramIsReplacedOnItsSocket of internal/run sends the signal"},
	{
		"lifecyclectl upgrade --admin-token-file /etc/web/admin-token",
		"the process is the reader's: TestAnswersOfTheProcess of the folder upgrade runs the command",
	},
	{"kill -USR2 $(cat /run/web.pid)", "the process is the reader's: TestUpgradeSignal of the root module sends the signal"},
	{"make test", ".ci/run runs it"},
	{"make e2e", ".ci/run runs it where it can"},
	{"make e2e-long", "half an hour, on a cluster"},
}

// Every command line of the README and of the pages works as it is printed, or is excused
// with a reason.
func TestCommandsOfPagesWork(t *testing.T) {
	used := map[string]bool{}
	byPlace := map[string][]int{} // indexes of lines
	lines := commandLines(t, pagesOf(t, readerPages...))
	kinds := make([]int, len(lines))
	for i, c := range lines {
		if k := slices.IndexFunc(excused, func(e struct{ line, why string }) bool { return e.line == c.line }); k >= 0 {
			used[c.line] = true
			continue
		}
		kinds[i] = -1
		for k, r := range runs {
			if r.line.MatchString(c.line) {
				kinds[i] = k
				used[r.line.String()] = true
				byPlace[r.where] = append(byPlace[r.where], i)
				break
			}
		}
		if kinds[i] < 0 {
			t.Errorf("%s prints %q: no entry of this test runs it, and none excuses it", c.page, c.line)
		}
	}
	for _, e := range excused {
		if !used[e.line] {
			t.Errorf("no page prints %q: take it out of this test", e.line)
		}
	}
	for _, r := range runs {
		if !used[r.line.String()] {
			t.Errorf("no page prints a line that matches %s: take it out of this test", r.line)
		}
	}
	env := printedEnv(t)
	for _, where := range []string{"help", "site", "files", "deploy", "deploy/kustomize", "deploy/kustomize/overlays/production", "service", "network"} {
		t.Run(strings.ReplaceAll(where, "/", " "), func(t *testing.T) {
			if testing.Short() && (where == "site" || where == "service" || where == "network") {
				t.Skip("it runs dozens of programs: make test-long runs it")
			}
			place := &place{where: where, env: env}
			switch where {
			case "help":
				place.dir = t.TempDir()
			case "site":
				place.openSite(t)
			case "files":
				place.writeFiles(t)
			case "service", "network":
				place.dir = repository
			default:
				place.dir = filepath.Join(repository, filepath.FromSlash(where))
			}
			if where == "service" {
				place.network = place.inNetwork(t, "go run ./examples/service")
				place.await(t, "curl localhost:8081/readyz")
			}
			for _, i := range byPlace[where] {
				place.run(t, lines[i], runs[kinds[i]].status, runs[kinds[i]].stopped)
			}
			if place.network != nil {
				place.network.interrupt(t)
			}
		})
	}
}

// printedEnv is the environment of a reader: the programs of this repository and those of
// bin, where "make manifest-tools" puts them, are in PATH. A curl that gets an HTTP error
// fails.
func printedEnv(t *testing.T) []string {
	t.Helper()
	bin := t.TempDir()
	for name, folder := range map[string]string{"lifecyclectl": ".", "lifecycle-vet": filepath.Join(repository, "vet", "cmd", "lifecycle-vet")} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, name), folder).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, ".curlrc"), []byte("fail\nsilent\nshow-error\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tools, err := filepath.Abs(filepath.Join(repository, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), "CURL_HOME="+bin, "PATH="+strings.Join([]string{bin, os.Getenv("PATH"), tools}, string(filepath.ListSeparator)))
}

// place is where lines are run.
type place struct {
	where, dir string
	env        []string
	site       *site
	network    *running
}

func (p *place) openSite(t *testing.T) {
	p.site = newSite(t)
	if err := p.site.process("web", "web-1", nil); err != nil { // the service that the pages name
		t.Fatal(err)
	}
	url, err := p.site.serve(p.site.config())
	if err != nil {
		t.Fatal(err)
	}
	p.env = append(slices.Clone(p.env), "LIFECYCLECTL_SERVER="+url, "OPS="+url)
	p.dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(p.dir, "auth"), []byte("Authorization: Bearer a-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the process of web", func() bool {
		return p.command(t.Context(), "lifecyclectl doctor --service web").Run() == nil
	})
	if err := os.WriteFile(filepath.Join(p.dir, "other.json"), []byte(`{"priority": 4, "org": "globex"}`), 0o600); err != nil {
		t.Fatal(err)
	}
}

// writeFiles writes the files that the lines of vet name.
func (p *place) writeFiles(t *testing.T) {
	p.dir = t.TempDir()
	clean, err := os.ReadFile(filepath.Join(repository, "vet", "testdata", "clean.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"deployment.yaml": strings.Replace(string(clean), "kind: PodDisruptionBudget", "kind: Other", 1),
		"pdb.yaml":        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: web}\nspec: {maxUnavailable: 1, selector: {matchLabels: {app: web}}}\n",
		"service.yaml":    "addr: \":8080\"\nlifecycle:\n  termination_grace: 30s\n",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chart, err := filepath.Abs(filepath.Join(repository, "deploy", "helm", "lifecycle-service"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(chart, filepath.Join(p.dir, "chart")); err != nil {
		t.Fatal(err)
	}
}

// prepare brings the site into the state that the lines of the page expect.
func (p *place) prepare(t *testing.T) {
	t.Helper()
	for revision := uint64(42); revision == 42; { // the pages show 42 as the etag of a change before
		_ = p.site.mgr.Delete(t.Context(), "drone-survey", "m-17") // of the line before
		if err := p.site.mgr.Create(t.Context(), &survey{ID: "m-17", State: "flying", Org: "acme"}); err != nil {
			t.Fatal(err)
		}
		var rec workflow.Record
		if _, err := p.site.mgr.Get(t.Context(), "drone-survey", "m-17", workflow.RecordTo(&rec)); err != nil {
			t.Fatal(err)
		}
		revision = rec.Revision
	}
	p.site.workers.die("thumbs", 20, 0)
}

// run runs a line, and wants its status. A line that does not end by itself is
// interrupted once it has printed something, and has to end then.
func (p *place) run(t *testing.T, c printed, status int, stopped bool) {
	t.Helper()
	if p.site != nil {
		p.prepare(t)
	}
	switch {
	case p.where == "help":
		p.help(t, c)
	case p.where == "network":
		p.inNetwork(t, c.line).interrupt(t)
	case stopped:
		stream := p.start(t, c.line)
		for end := time.Now().Add(time.Minute); stream.text() == ""; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: %q prints nothing", c.page, c.line)
			}
			_, _ = p.command(t.Context(), "curl -X POST 'localhost:8080/work?note=hello'").CombinedOutput() // makes an event
		}
		_ = syscall.Kill(-stream.cmd.Process.Pid, syscall.SIGTERM)
		_ = stream.cmd.Wait()
	default:
		for _, tool := range []string{"kustomize", "helm", "jq", "curl"} {
			if strings.Contains(" "+c.line, " "+tool+" ") && !p.has(tool) {
				t.Logf("not run, because there is no %s: %s", tool, c.line)
				return
			}
		}
		out, err := p.command(t.Context(), c.line).CombinedOutput()
		got := 0
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			got, err = exit.ExitCode(), nil
		}
		if err != nil || got != status {
			t.Errorf("%s: %q ends with status %d, %v; want %d\n%s", c.page, c.line, got, err, status, out)
		}
	}
}

func (p *place) has(tool string) bool {
	return p.command(context.Background(), "command -v "+tool).Run() == nil
}

// help asks for the help of a command whose form a page shows: it shows the same.
func (p *place) help(t *testing.T, c printed) {
	t.Helper()
	name := regexp.MustCompile(`^[a-z-]+( [a-z][a-z-]*)*\b`).FindString(strings.ReplaceAll(c.line, "deployment/NAME", ""))
	out, err := p.command(t.Context(), name+" --help").CombinedOutput()
	if err != nil || !strings.Contains(string(out), c.line) {
		t.Errorf("%s: %s --help: %v\n%s\nwant %q in it", c.page, name, err, out, c.line)
	}
}

// command is a line in the shell of a reader, who has bash.
func (p *place) command(ctx context.Context, line string) *exec.Cmd {
	args := []string{"bash", "-o", "pipefail", "-c", line}
	if p.network != nil {
		args = append([]string{"nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", p.network.cmd.Process.Pid)}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = p.dir, p.env
	return cmd
}

// running is a line that runs.
type running struct {
	line string
	cmd  *exec.Cmd
	out  *os.File
}

func (r *running) text() string {
	text, _ := os.ReadFile(r.out.Name())
	return string(text)
}

func (p *place) start(t *testing.T, line string) *running {
	t.Helper()
	return launch(t, line, p.command(context.Background(), line))
}

func launch(t *testing.T, line string, cmd *exec.Cmd) *running {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		if errors.Is(err, os.ErrPermission) {
			t.Skipf("the kernel does not allow a new network namespace: %v", err)
		}
		t.Fatal(err)
	}
	r := &running{line, cmd, out}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		_ = out.Close()
	})
	return r
}

// inNetwork runs a line in a network of its own, so that the ports of the page are free.
func (p *place) inNetwork(t *testing.T, line string) *running {
	t.Helper()
	for _, tool := range []string{"ip", "nsenter", "curl"} {
		if !p.has(tool) {
			t.Skipf("there is no %s in PATH", tool)
		}
	}
	cmd := p.command(context.Background(), "ip link set lo up && exec "+line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	data, err := os.MkdirTemp("", "pages") // a short path: examples have sockets there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	cmd.Env = append(slices.Clone(p.env), "TMPDIR="+data)
	return launch(t, line, cmd)
}

// await runs a line until it works.
func (p *place) await(t *testing.T, line string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); p.command(t.Context(), line).Run() != nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q never works\n%s", line, p.network.text())
		}
	}
}

// interrupt presses Ctrl-C once the line has printed that it serves, unless it ends by
// itself, and wants the status 0.
func (r *running) interrupt(t *testing.T) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.cmd.Wait() }()
	serves := regexp.MustCompile(`(INFO |msg=)running |tree +Starting -> Running`)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(5 * time.Minute)
	for sent := false; ; {
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%q ends with %v\n%s", r.line, err, tail(r.text()))
			}
			return
		case <-limit:
			t.Fatalf("%q does not end\n%s", r.line, tail(r.text()))
		case <-tick.C:
			if !sent && serves.MatchString(r.text()) {
				sent = true
				r.interruptProgram(t)
			}
		}
	}
}

// interruptProgram sends SIGINT to the program that "go run" runs. On a terminal both get
// it, and "go run" then hides the status of the program behind its own.
func (r *running) interruptProgram(t *testing.T) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, thread := range threads {
		text, _ := os.ReadFile(thread) // the thread may have ended
		children = append(children, strings.Fields(string(text))...)
	}
	if len(children) != 1 {
		t.Fatalf("%q runs the processes %v, want one", r.line, children)
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGINT)
}

// tail returns the end of a text.
func tail(text string) string { return text[max(0, len(text)-4000):] }
