package vet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
)

// The Service of the clean manifest sends requests to port 8080 of the container.
func TestServiceSendsToWhereLifecycleRunListens(t *testing.T) {
	const grace = "-lifecycle.termination-grace=30s"
	image := "          image: example/web:1\n"
	with := func(lines string) string { return strings.Replace(clean, image, image+lines, 1) }
	command := func(words, more string) string {
		return with("          command: [/lifecycle-run, " + grace + ", " + words + "]\n" + more)
	}
	env := func(name, value string) string {
		return "          env: [{name: " + name + ", value: '" + value + "'}]\n"
	}
	elsewhere := command("'--proxy=http://127.0.0.1:8000', '--addr=:9000', --, app", "")
	wrong := []string{"wrong-port"}
	for name, tt := range map[string]struct {
		text string
		want []string
		says string
	}{
		"the proxy's default": {command("'--proxy=http://127.0.0.1:8000', --, app", ""), nil, ""},
		"the proxy elsewhere": {
			elsewhere,
			wrong, `the proxy listens on :9000 (addr): each is refused set the containerPort of http to 9000, or set addr of lifecycle-run to ":8080"`,
		},
		"past the proxy": {command("'--proxy=http://127.0.0.1:8080', '--addr=:9000', --, app", ""), wrong, "past the proxy"},
		"a proxy for the pod": {
			command("'--proxy=http://127.0.0.1:8000', '--addr=127.0.0.1:8080', --, app", ""),
			wrong, "127.0.0.1:8080",
		},
		"by a variable": {
			command("--, app", env("LIFECYCLE_RUN_PROXY", "http://127.0.0.1:8080")),
			[]string{"config-refused"}, "where the proxy itself listens",
		},
		"a variable, elsewhere": {
			command("'--proxy=http://127.0.0.1:8000', --, app", env("LIFECYCLE_RUN_ADDR", ":9000")),
			wrong, "listens on :9000",
		},
		"an unknown variable": {command("'--proxy=http://127.0.0.1:8000', --, app", env("LIFECYCLE_RUN_ADDR", "$(ADDR)")), nil, ""},
		"the program's flag":  {command("--, gunicorn, --bind, ':8080', app", ""), nil, ""},
		"another flag's": {
			command("--, gunicorn, --bind, ':8000', app", ""),
			wrong, "the program gets --bind :8000: each is refused",
		},
		"in a script":       {command("--, sh, -c, exec uvicorn --port=8000 app", ""), wrong, "--port 8000"},
		"Java":              {command("--, java, -Dserver.port=8000, -jar, app.jar", ""), wrong, "-Dserver.port 8000"},
		"for the pod alone": {command("--, gunicorn, -b, '127.0.0.1:8080', app", ""), wrong, "let the program listen on :8080"},
		"for the pod alone, in capitals": {
			command("--, gunicorn, -b, 'LOCALHOST:8080', app", ""), wrong, "let the program listen on :8080",
		},
		"a check of the pod": {
			command("'--ready=http://127.0.0.1:8080/', --, gunicorn, -b, '127.0.0.1:8080', app", ""),
			wrong, "-b 127.0.0.1:8080",
		},
		"for both":               {command("--, gunicorn, -b, '127.0.0.1:8080', -b, '0.0.0.0:8080', app", ""), nil, ""},
		"a unix socket":          {command("--, gunicorn, --bind, 'unix:/run/x', app", ""), nil, ""},
		"one of two":             {command("--, gunicorn, --bind, ':8000', --bind, ':8080', app", ""), nil, ""},
		"an unknown flag":        {command("--, gunicorn, --bind, $(BIND), app", ""), nil, ""},
		"a script of several":    {command("--, sh, -c, 'until pg_isready --port 5432; do sleep 1; done; exec app'", ""), nil, ""},
		"another program's -b":   {command("--, memcached, -b, '1024'", ""), nil, ""},
		"a further flag":         {command("--, app, --port, '9000', --grpc-port, '8080'", ""), nil, ""},
		"a further variable":     {command("--, app", env("GRPC_PORT", "8080")), nil, ""},
		"the program's variable": {command("--, node, server.js", env("PORT", "8000")), wrong, "PORT=8000"},
		"a check answers there":  {command("'--ready=http://127.0.0.1:8080/', --, node, server.js", env("PORT", "8000")), nil, ""},
		"an inherited socket":    {command("'--listen=:8000', --, app", ""), wrong, "--listen :8000"},
		"nothing is told":        {command("--, app", ""), nil, ""},
		"the proxy sends to it":  {command("'--proxy=http://127.0.0.1:8000', --, gunicorn, --bind, '127.0.0.1:8000', app", ""), nil, ""},
		"the proxy sends past it": {
			command("'--proxy=http://127.0.0.1:8000', --, gunicorn, --bind, '127.0.0.1:9000', app", ""),
			wrong, "the program gets --bind 127.0.0.1:9000: each is answered with 502",
		},
		"not lifecycle-run":        {with("          command: [gunicorn, --bind, ':8000', " + grace + "]\n"), nil, ""},
		"another container's port": {strings.Replace(elsewhere, "targetPort: http", "targetPort: 7000", 1), wrong, "port 7000"},
		"the planes' port":         {strings.Replace(elsewhere, "targetPort: http", "targetPort: health", 1), nil, ""},
		"another Service": {
			elsewhere + "---\napiVersion: v1\nkind: Service\nmetadata: {name: more}\nspec: {selector: {app: web}, ports: [{port: 9000}]}\n", nil, "",
		},
		"UDP": {strings.Replace(elsewhere, "targetPort: http", "targetPort: http, protocol: UDP", 1), nil, ""},
		"the file": {
			strings.NewReplacer(
				"      containers:\n", "      volumes: [{name: c, configMap: {name: web}}]\n      containers:\n",
				"app]\n", "app]\n          volumeMounts: [{name: c, mountPath: /etc/run}]\n",
			).Replace(command("-config=/etc/run/run.yaml, --, app", "")) + "---\n" + configMap("web", "run.yaml", "proxy: http://127.0.0.1:8000\naddr: :9000\n"),
			wrong, "listens on :9000",
		},
		"a file that is not here": {
			command("-config=/etc/run.yaml, '--proxy=http://127.0.0.1:8000', '--addr=:9000', --, app", ""),
			[]string{"config-undecided"}, "",
		},
	} {
		if got := rules(lifecycle.Config{}, tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if said := fmt.Sprint(check(lifecycle.Config{}, tt.text).Findings); !strings.Contains(said, tt.says) {
			t.Errorf("%s: it does not say %q: %s", name, tt.says, said)
		}
	}
}
