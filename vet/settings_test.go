package vet_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// stream is the clean manifest with these lines in its container and in its pod, and with
// these documents after it.
type stream struct {
	container, volumes string
	documents          []string
}

func (s stream) String() string {
	text := strings.Replace(clean, "          image: example/web:1\n", "          image: example/web:1\n"+indent(10, s.container), 1)
	text = strings.Replace(text, "      containers:\n", indent(6, s.volumes)+"      containers:\n", 1)
	for _, d := range s.documents {
		text += "---\n" + d
	}
	return text
}

func indent(by int, text string) (out string) {
	for line := range strings.Lines(text) {
		out += strings.Repeat(" ", by) + strings.TrimRight(line, "\n") + "\n"
	}
	return out
}

// configMap is a ConfigMap with a file, or with values of one line each.
func configMap(name string, pairs ...string) string {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata:\n"
	for i := 0; i < len(pairs); i += 2 {
		if strings.Contains(pairs[i+1], "\n") {
			text += "  " + pairs[i] + ": |\n" + indent(4, pairs[i+1])
			continue
		}
		text += fmt.Sprintf("  %s: %q\n", pairs[i], pairs[i+1])
	}
	return text
}

// sixty is a file with 60 s of drain and 60 s of shutdown.
const sixty = "addr: \":8080\"\nlifecycle:\n  drain_interval: 60s\n  shutdown_grace: 60s\n"

const (
	mount      = "volumeMounts: [{name: config, mountPath: /etc/service}]\n"
	byFlag     = "args: [\"-config=/etc/service/service.yaml\"]\n"
	volume     = "volumes: [{name: config, configMap: {name: web}}]\n"
	tooShort   = "drain_interval 1m0s + shutdown_grace 1m0s + margin 2s = 2m2s"
	halfOfThat = "drain_interval 1m0s + shutdown_grace 20s + margin 2s = 1m22s"
)

// inputs are streams in which the times of a stop stand somewhere else than in the
// variables of the pod template, each with the sum that vet must find.
var inputs = map[string]struct {
	stream
	sum string // "" for a stop that fits
}{
	"volume":         {stream{byFlag + mount, volume, []string{configMap("web", "service.yaml", sixty)}}, tooShort},
	"without a flag": {stream{mount, volume, []string{configMap("web", "service.yaml", sixty, "motd", "hello")}}, tooShort},
	"flag in two words": {stream{"command: [/web]\nargs: [--config, /etc/service/service.yaml]\n" + mount, volume,
		[]string{configMap("web", "service.yaml", sixty)}}, tooShort},
	"named by a variable": {stream{"env: [{name: WEB_CONFIG, value: /etc/service/two.yaml}]\n" + mount, volume,
		[]string{configMap("web", "one.yaml", "lifecycle: {drain_interval: 1s}\n", "two.yaml", sixty)}}, tooShort},
	"the flag before the variable": {stream{byFlag + "env: [{name: WEB_CONFIG, value: /etc/service/two.yaml}]\n" + mount, volume,
		[]string{configMap("web", "service.yaml", "lifecycle:\n  drain_interval: 5s\n", "two.yaml", sixty)}}, ""},
	"no file at all": {stream{"args: [-config=]\n" + mount, volume, []string{configMap("web", "service.yaml", sixty)}}, ""},
	"subPath": {stream{byFlag + "volumeMounts: [{name: config, mountPath: /etc/service/service.yaml, subPath: web.yaml}]\n", volume,
		[]string{configMap("web", "web.yaml", sixty, "service.yaml", "lifecycle: {}\n")}}, tooShort},
	"items": {stream{"args: [-config=/etc/service/a/b.yaml]\n" + mount, "volumes: [{name: config, configMap: {name: web, items: [{key: web, path: a/b.yaml}]}}]\n",
		[]string{configMap("web", "web", sixty)}}, tooShort},
	"projected": {stream{byFlag + mount, "volumes: [{name: config, projected: {sources: [{secret: {name: other, optional: true}}, {configMap: {name: web}}]}}]\n",
		[]string{configMap("web", "service.yaml", sixty)}}, tooShort},
	"secret": {stream{byFlag + mount, "volumes: [{name: config, secret: {secretName: web}}]\n",
		[]string{"apiVersion: v1\nkind: Secret\nmetadata: {name: web}\ndata: {service.yaml: " + base64.StdEncoding.EncodeToString([]byte(sixty)) + "}\n"}}, tooShort},
	"JSON": {stream{"args: [-config=/etc/service/service.json]\n" + mount, volume,
		[]string{configMap("web", "service.json", `{"lifecycle": {"drain_interval": "60s", "shutdown_grace": "60s"}}`)}}, tooShort},
	"TOML": {stream{"args: [-config=/etc/service/service.toml]\n" + mount, volume,
		[]string{configMap("web", "service.toml", "[lifecycle]\ndrain_interval = \"60s\"\nshutdown_grace = \"60s\"\n")}}, tooShort},
	"envFrom":        {stream{"envFrom: [{configMapRef: {name: web}}]\n", "", []string{configMap("web", "WEB_LIFECYCLE_DRAIN_INTERVAL", "60s")}}, halfOfThat},
	"envFrom prefix": {stream{"envFrom: [{prefix: WEB_, configMapRef: {name: web}}]\n", "", []string{configMap("web", "LIFECYCLE_DRAIN_INTERVAL", "60s")}}, halfOfThat},
	"env before envFrom": {stream{"env: [{name: WEB_LIFECYCLE_DRAIN_INTERVAL, value: 5s}]\nenvFrom: [{configMapRef: {name: web}}]\n", "",
		[]string{configMap("web", "WEB_LIFECYCLE_DRAIN_INTERVAL", "60s")}}, ""},
	"valueFrom": {stream{"env: [{name: WEB_LIFECYCLE_DRAIN_INTERVAL, valueFrom: {configMapKeyRef: {name: web, key: drain}}}]\n", "",
		[]string{configMap("web", "drain", "60s")}}, halfOfThat},
	"flag":                            {stream{"args: [-lifecycle.drain-interval=60s]\n", "", nil}, halfOfThat},
	"flag in a shell":                 {stream{"command: [/bin/sh, -c, exec /web -lifecycle.exit-on-signal -lifecycle.drain-interval 60s]\n", "", nil}, halfOfThat},
	"options before the shell's -c":   {stream{"command: [/bin/bash, -e, -o, pipefail, -uc]\nargs: [exec /web -lifecycle.drain-interval=60s]\n", "", nil}, halfOfThat},
	"quotes in a shell":               {stream{"command: [sh, -ec, \"exec /web \\\\\\n -lifecycle.drain-interval \\\\\\n '60s' -lifecycle.linger=\\\"5s\\\";\"]\n", "", nil}, halfOfThat},
	"quotes that change nothing":      {stream{"command: [sh, -c, \"exec /web -lifecycle.drain-interval='5s'\"]\n", "", nil}, ""},
	"a prefix that ends in LIFECYCLE": {stream{"env: [{name: USER_LIFECYCLE_LIFECYCLE_DRAIN_INTERVAL, value: 60s}]\n", "", nil}, halfOfThat},
	"items that are empty": {stream{byFlag + mount, "volumes: [{name: config, configMap: {name: web, items: []}}]\n",
		[]string{configMap("web", "service.yaml", sixty)}}, tooShort},
	"the flag before all": {stream{byFlag[:len(byFlag)-2] + ", -lifecycle.drain-interval=4s, -lifecycle.shutdown-grace=20s]\nenv: [{name: WEB_LIFECYCLE_DRAIN_INTERVAL, value: 40s}]\n" + mount, volume,
		[]string{configMap("web", "service.yaml", sixty)}}, ""},
	"the variable before the file": {stream{byFlag + "env: [{name: WEB_LIFECYCLE_SHUTDOWN_GRACE, value: 20s}]\n" + mount, volume,
		[]string{configMap("web", "service.yaml", sixty)}}, halfOfThat},
}

// The budget follows from the settings with which the service starts, wherever in the
// stream they stand.
func TestBudgetIsThatOfTheWholeStream(t *testing.T) {
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			r := check(lifecycle.Config{}, in.String())
			var said []string
			for _, f := range r.Findings {
				if f.Severity == vet.Error {
					said = append(said, f.Reason)
				}
				if f.Rule == "config-undecided" {
					t.Errorf("a note that is not true: %s", f.Reason)
				}
			}
			switch {
			case in.sum == "" && len(said) > 0:
				t.Errorf("the stop fits, and vet says %q", said)
			case in.sum != "" && !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, in.sum) }):
				t.Errorf("want %q, have %+v", in.sum, r.Findings)
			}
		})
	}
}

// A setting that the service refuses stands at its line, in the ConfigMap too. A setting
// that vet cannot know is a note, and nothing is said about sums with it.
func TestSettingsThatAreWrongOrUnknown(t *testing.T) {
	file := func(text string) stream {
		return stream{byFlag + mount, volume, []string{configMap("web", "service.yaml", text)}}
	}
	for name, tt := range map[string]struct {
		cfg       lifecycle.Config
		in        stream
		rule      string
		at, words string // the finding's line has at
	}{
		"no such key": {
			in:    file("lifecycle:\n  drain_intervall: 5s\n"),
			rule:  "config-refused",
			at:    "drain_intervall",
			words: "did you mean drain_interval?",
		},
		"not of lifecycle":      {in: stream{"env: [{name: DB_LIFECYCLE_HOOK, value: /x}]\n", "", nil}},
		"a secret":              {in: stream{"env: [{name: WEB_LIFECYCLE_ADMIN_TOKEN, value: x}]\n", "", nil}},
		"no unit":               {in: file("lifecycle:\n  linger: 1s\n  drain_interval: 5\n"), rule: "config-refused", at: "    drain_interval: 5", words: "lifecycle.drain_interval is 5: want a duration with its unit"},
		"no sum":                {in: file("lifecycle:\n  linger: 30s\n"), rule: "config-refused", at: "linger: 30s", words: "lifecycle.linger"},
		"not YAML":              {in: file("lifecycle:\n  a: [\n"), rule: "config-refused", at: "", words: "not valid YAML"},
		"no such flag":          {in: stream{"args: [-lifecycle.drain-intervall=5s]\n", "", nil}, rule: "config-refused", at: "drain-intervall", words: "did you mean -lifecycle.drain-interval?"},
		"flag":                  {in: stream{"args: [-lifecycle.drain-interval=5]\n", "", nil}, rule: "config-refused", at: "drain-interval", words: `-lifecycle.drain-interval is "5"`},
		"no such object":        {in: stream{byFlag + mount, volume, nil}, rule: "config-undecided", at: "-config=", words: "ConfigMap/web is not in these files"},
		"no such file":          {in: stream{byFlag + mount, volume, []string{configMap("web", "web.yaml", sixty)}}, rule: "config-undecided", at: "-config=", words: "no such file"},
		"in the image":          {in: stream{byFlag, "", nil}, rule: "config-undecided", at: "-config=", words: "it is in the image"},
		"another volume":        {in: stream{byFlag + mount, "volumes: [{name: config, emptyDir: {}}]\n", nil}, rule: "config-undecided", at: "-config=", words: "filled when the pod runs"},
		"several files":         {in: stream{mount, volume, []string{configMap("web", "a.yaml", sixty, "b.yaml", sixty)}}, rule: "config-undecided", at: "a.yaml", words: "/etc/service/a.yaml, /etc/service/b.yaml"},
		"mounted object":        {in: stream{mount, volume, nil}, rule: "config-undecided", at: "volumeMounts", words: "ConfigMap/web"},
		"a shell's":             {in: stream{"command: [sh, -c, 'exec /web -lifecycle.drain-interval=$DRAIN']\n", "", nil}, rule: "config-undecided", at: "command", words: "the shell expands"},
		"refers to a variable":  {in: stream{"env: [{name: DRAIN, value: 60s}, {name: WEB_LIFECYCLE_DRAIN_INTERVAL, value: $(DRAIN)}]\n", "", nil}, rule: "config-undecided", at: "DRAIN_INTERVAL", words: "other variables"},
		"flag with a variable":  {in: stream{"args: [--lifecycle.drain-interval, $(DRAIN)]\nenv: [{name: DRAIN, value: 60s}]\n", "", nil}, rule: "config-undecided", at: "drain-interval", words: "puts variables into it"},
		"a label":               {in: stream{"env: [{name: WEB_LIFECYCLE_DRAIN_INTERVAL, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}]\n", "", nil}, rule: "config-undecided", at: "DRAIN_INTERVAL", words: "known when the pod runs"},
		"the caller knows":      {cfg: cleanConfig(), in: stream{byFlag + mount, volume, nil}},
		"variables of a Secret": {in: stream{"envFrom: [{prefix: WEB_LIFECYCLE_, secretRef: {name: times}}]\n", "", nil}, rule: "config-undecided", at: "secretRef", words: "Secret/times"},
		"another program's":     {in: stream{mount, volume, []string{configMap("web", "other.yaml", "lifecycle: {rules: [1]}\n")}}},
		"the file counts":       {cfg: lifecycle.Config{DrainInterval: 50 * time.Second}, in: file("lifecycle: {drain_interval: 5s, termination_grace: 30s}\n")},
	} {
		t.Run(name, func(t *testing.T) {
			text := tt.in.String()
			found := false
			for _, f := range check(tt.cfg, text).Findings {
				if f.Rule == "grace-undeclared" {
					continue
				}
				if f.Rule != tt.rule || !strings.Contains(strings.Split(text, "\n")[f.Line-1], tt.at) || !strings.Contains(f.Reason, tt.words) {
					t.Errorf("line %d %q: %s: %s", f.Line, strings.Split(text, "\n")[f.Line-1], f.Rule, f.Reason)
				}
				found = true
			}
			if !found && tt.rule != "" {
				t.Errorf("%s does not speak", tt.rule)
			}
		})
	}
}

// A Secret's own text is in no finding.
func TestSecretsAreNotShown(t *testing.T) {
	in := stream{byFlag + mount, "volumes: [{name: config, secret: {secretName: web}}]\n",
		[]string{"apiVersion: v1\nkind: Secret\nmetadata: {name: web}\nstringData:\n  service.yaml: |\n    dsn: hunter2\n    lifecycle: {admin_token: hunter2, hunter2: 1}\n"}}
	r := check(lifecycle.Config{}, in.String())
	if r.AtLeast(vet.Error) == 0 {
		t.Errorf("the file is refused: %+v", r.Findings)
	}
	for _, f := range r.Findings {
		if strings.Contains(f.Reason+f.Fix, "hunter2") && !strings.Contains(f.Reason, "no such key") {
			t.Errorf("%+v", f)
		}
	}
}
