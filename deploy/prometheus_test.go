package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// process is a program that the test starts and awaits at its end.
type process struct {
	cmd   *exec.Cmd
	out   *bytes.Buffer
	ended chan struct{}
}

func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), out: new(bytes.Buffer), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its output says more
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s printed:\n%s", filepath.Base(name), p.out)
		}
	})
	return p
}

// lowPorts returns a function that finds free addresses. Their ports are not the ports that
// the kernel gives to clients, of which there are many here.
func lowPorts(t *testing.T) func() string {
	port := 12000 + rand.IntN(10000)
	return func() string {
		for range 1000 {
			port++
			if ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
				defer ln.Close()
				return ln.Addr().String()
			}
		}
		t.Fatal("no port is free")
		return ""
	}
}

// browser returns a client whose connections end with the test.
func browser(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func ok(client *http.Client, url string) bool {
	resp, err := client.Get(url)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// series returns the label sets of a query's results in the last minutes.
func series(t *testing.T, client *http.Client, prometheus, expr string) []map[string]string {
	t.Helper()
	return seriesSince(t, client, prometheus, expr, time.Now().Add(-5*time.Minute))
}

// seriesSince returns the label sets of a query's results since then.
func seriesSince(t *testing.T, client *http.Client, prometheus, expr string, since time.Time) []map[string]string {
	t.Helper()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	get(t, client, fmt.Sprintf("http://%s/api/v1/query_range?step=1&start=%d&end=%d&query=%s",
		prometheus, since.Unix(), time.Now().Unix()+1, url.QueryEscape(expr)), &answer)
	if answer.Status != "success" {
		t.Errorf("%s: %s", expr, answer.Error)
	}
	var all []map[string]string
	for _, s := range answer.Data.Result {
		if len(s.Values) > 0 {
			all = append(all, s.Metric)
		}
	}
	return all
}

func get(t *testing.T, client *http.Client, url string, v any) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
}

// TestDashboardShowsALife lets a real Prometheus scrape the example, configured
// like the base, from its start through a reload and a unit that delays the
// stop, to its end. Then every query of the dashboard must have values from the stop.
func TestDashboardShowsALife(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole life under a real Prometheus: make test-long runs it")
	}
	prometheus := tool(t, "prometheus")
	folder := t.TempDir()
	service := filepath.Join(folder, "service")
	build := exec.Command("go", "build", "-C", "../examples", "-buildvcs=false", "-o", service, "./service")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports := lowPorts(t)
	web, health, own := ports(), ports(), ports()
	shipped, err := os.ReadFile("kustomize/base/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "service.yaml")
	text := strings.NewReplacer(`":8080"`, `"`+web+`"`, `":8081"`, `"`+health+`"`).Replace(string(shipped))
	write := func(name, text string) string {
		name = filepath.Join(folder, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("service.yaml", text)
	scrape := write("prometheus.yaml", fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n  - {job_name: service, static_configs: [{targets: [%q]}]}\n", health))
	svc := start(t, []string{"SERVICE_LIFECYCLE_SHUTDOWN_GRACE=20s", "SERVICE_LIFECYCLE_REPORT_SLICE=5s", "SERVICE_LIFECYCLE_LAST_STOP_FILE=" + filepath.Join(folder, "last-stop.json"), "SERVICE_LIFECYCLE_TERMINATION_GRACE=35s"}, service, "-config="+file, "-db="+filepath.Join(folder, "db"), "-allow-faults")
	start(t, nil, prometheus, "--config.file="+scrape, "--storage.tsdb.path="+filepath.Join(folder, "tsdb"), "--web.listen-address="+own, "--log.level=warn")
	client := browser(t)
	eventually(t, "the service to be ready", func() bool { return ok(client, "http://"+health+"/readyz") })
	eventually(t, "Prometheus to be ready", func() bool { return ok(client, "http://"+own+"/-/ready") })
	seen := func(expr string) func() bool {
		return func() bool { return len(series(t, client, own, expr)) > 0 }
	}
	eventually(t, "a scrape", seen(`lifecycle_phase{phase="running"} == 1`))

	write("service.yaml", strings.Replace(text, "lifecycle:\n", "lifecycle:\n  linger: 2s\n", 1)) // a change is a reload
	eventually(t, "the reload to be counted", seen(`lifecycle_reloads_total{result="ok"} > 0`))
	// A unit that does not return delays the stop for its slice, 5 s.
	resp, err := client.Post("http://"+web+"/fail?how=stuck-unit", "", nil)
	if err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatalf("%v, %+v", err, resp)
	}
	resp.Body.Close()
	stopped := time.Now()
	if err := svc.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drain to be seen", seen(`lifecycle_phase{phase="draining"} == 1`))
	eventually(t, "the stop to be seen", seen(`lifecycle_phase{phase="stopping"} == 1`))
	<-svc.ended
	eventually(t, "the last scrape to be stored", seen(`lifecycle_last_stop_exit_status`))

	for _, q := range dashboardQueries(t) {
		t.Run(q.where, func(t *testing.T) {
			expr := strings.NewReplacer("$job", "service", "$instance", strings.ReplaceAll(regexp.QuoteMeta(health), `\`, `\\`), "$__rate_interval", "10s", "$__range", "5m").Replace(q.expr)
			got := seriesSince(t, client, own, expr, stopped)
			if len(got) == 0 {
				t.Fatalf("no series for %s", expr)
			}
			for _, label := range q.labels {
				if _, ok := got[0][label]; !ok {
					t.Errorf("the legend shows {{%s}}, and the series has %v", label, got[0])
				}
			}
		})
	}
	for _, label := range []string{"job", "instance"} { // the queries of the variables
		var values struct{ Data []string }
		get(t, client, "http://"+own+"/api/v1/label/"+label+"/values?match[]=lifecycle_app_info", &values)
		if len(values.Data) != 1 {
			t.Errorf("variable %s has %v", label, values.Data)
		}
	}
}

type query struct {
	where, expr string
	labels      []string // in the legend
}

type dashboard struct {
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		GridPos     struct{ H, W, X, Y int }
		Datasource  struct{ UID string }
		Targets     []struct {
			RefID, Expr, LegendFormat string
			Datasource                struct{ UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	data, err := os.ReadFile("grafana/lifecycle.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)

func dashboardQueries(t *testing.T) (all []query) {
	t.Helper()
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			q := query{where: p.Title + " " + target.RefID, expr: target.Expr}
			for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				q.labels = append(q.labels, m[1])
			}
			all = append(all, q)
		}
	}
	return all
}

// TestDashboardIsSound: ids are unique, panels do not overlap, every variable is
// used and every used one exists.
func TestDashboardIsSound(t *testing.T) {
	d := readDashboard(t)
	ids := make(map[int]string)
	taken := make(map[[2]int]string)
	var used strings.Builder
	for _, p := range d.Panels {
		if other, twice := ids[p.ID]; twice || p.ID < 1 {
			t.Errorf("%q and %q both have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q lies on %q at %d,%d", p.Title, other, x, y)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q has no description, no query, or a data source of its own", p.Title)
		}
		fmt.Fprint(&used, p.Datasource.UID)
		for _, target := range p.Targets {
			fmt.Fprintln(&used, target.Expr)
		}
	}
	have := []string{"__rate_interval", "__range"} // Grafana's own
	for _, v := range d.Templating.List {
		have = append(have, v.Name)
		if !strings.Contains(used.String(), "$"+v.Name) && !strings.Contains(used.String(), "${"+v.Name) {
			t.Errorf("variable %s is not used", v.Name)
		}
	}
	for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(used.String(), -1) {
		if !slices.Contains(have, m[1]) {
			t.Errorf("there is no variable %s", m[1])
		}
	}
}

type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations map[string]string
		}
	}
}

func TestAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	must(t, promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts/lifecycle.yaml")
	must(t, promtool, "test", "rules", "alerts/lifecycle_test.yaml")
}

// TestAlertsNameThePod runs the unit tests again with the labels that a pod has: each alert has
// to keep them.
func TestAlertsNameThePod(t *testing.T) {
	promtool := tool(t, "promtool")
	folder := t.TempDir()
	inSeries, inAlert := regexp.MustCompile(`instance="([^"]+)"`), regexp.MustCompile(`instance: ([^,}]+)`)
	var text strings.Builder
	for line := range strings.Lines(readFile(t, "alerts/lifecycle_test.yaml")) {
		if !strings.Contains(line, "namespace") {
			line = inSeries.ReplaceAllString(line, `instance="10.0.0.1:8081",namespace="shop",pod="$1"`)
			line = inAlert.ReplaceAllString(line, `instance: "10.0.0.1:8081", namespace: shop, pod: $1`)
		}
		text.WriteString(line)
	}
	for name, data := range map[string]string{"lifecycle.yaml": readFile(t, "alerts/lifecycle.yaml"), "lifecycle_test.yaml": text.String()} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must(t, promtool, "test", "rules", filepath.Join(folder, "lifecycle_test.yaml"))
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestAlertsAreTestedAndAboutMetricsThatExist: promtool accepts an
// alert about a missing metric.
func TestAlertsAreTestedAndAboutMetricsThatExist(t *testing.T) {
	reference, tests := readFile(t, "../docs/reference/metrics.md"), readFile(t, "alerts/lifecycle_test.yaml")
	metric := regexp.MustCompile(`\blifecycle_[a-z_]+`)
	var file ruleFile
	if err := yaml.Unmarshal([]byte(readFile(t, "alerts/lifecycle.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	exprs := make(map[string]string)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			exprs[r.Alert] = r.Expr
			if !strings.Contains(tests, "alertname: "+r.Alert+"\n") {
				t.Errorf("no unit test lets %s fire", r.Alert)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s does not say what to do", r.Alert)
			}
		}
	}
	for _, q := range dashboardQueries(t) {
		exprs["panel "+q.where] = q.expr
	}
	if len(exprs) < 20 {
		t.Errorf("only %d queries were found", len(exprs))
	}
	for where, expr := range exprs {
		for _, name := range metric.FindAllString(expr, -1) {
			name = strings.TrimSuffix(name, "_bucket") // of a histogram
			if !strings.Contains(reference, "| `"+name+"` |") {
				t.Errorf("%s is about %s, which docs/reference/metrics.md does not have", where, name)
			}
		}
	}
}
