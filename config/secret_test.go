package config

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
)

func TestSecretsAreNeverShown(t *testing.T) {
	path := write(t, "service.yaml", "token: hunter2-one\ndsn: hunter2-two\nlifecycle: {admin_token: hunter2-three-16-chars}\n")
	live, log := openLive(t, path, "SERVICE_TOKEN=hunter2-four")
	overwrite(t, path, "token: hunter2-five\ndsn: hunter2-six\npoll: 9s\nlifecycle: {admin_token: hunter2-seven-16-chars}\n")
	if err := live.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := log.String() + fmt.Sprint(live.Settings()) + fmt.Sprintf("%v %+v %#v", live.Get().Token, live.Get().Lifecycle, live.Get().Token)
	for _, content := range []string{
		"token: [hunter2]\n", "token: {hunter2: 1}\n", "dsn: 2222222\nlifecycle: {admin_token: hunter2}\n", "tokn: hunter2\n",
		"hunter2\n", "token: hunter2\n  x: 1\n", "- hunter2\n", "token: 'hunter2\n", "hunter2: &a [*a]\n", "token: !!int hunter2\n", "token: \"hunter2\\q\"\n", "token: 02222222\n", "x-t: &t 02222222\ntoken: *t\n",
	} {
		overwrite(t, path, content)
		err := live.Reload(t.Context())
		if err == nil {
			t.Errorf("%q is taken", content)
			continue
		}
		msg := err.Error()
		if content != "hunter2: &a [*a]\n" && content != "token: {hunter2: 1}\n" { // here it is a key
			seen += "\n" + msg
		}
	}
	for _, content := range []string{`{"token": hunter2}`, `{"token": "hunter2`, `["hunter2"]`, `{"lifecycle": {"admin_token": ["hunter2"]}}`} {
		if _, err := loadWith(write(t, "a.json", content), nil, nil); err == nil {
			t.Errorf("%q is taken", content)
		} else {
			seen += "\n" + err.Error()
		}
	}
	for _, content := range []string{`token = hunter2`, `token = "hunter2`, "[lifecycle]\nadmin_token = [\"hunter2\"]", `token = "hunter2" x`} {
		if _, err := loadWith(write(t, "a.toml", content), nil, nil); err == nil {
			t.Errorf("%q is taken", content)
		} else {
			seen += "\n" + err.Error()
		}
	}
	if strings.Contains(seen, "hunter2") || strings.Contains(seen, "2222222") {
		t.Errorf("a secret is shown:\n%s", seen)
	}
	if !strings.Contains(log.String(), "dsn: [secret] -> [secret], lifecycle.admin_token: [secret] -> [secret]") {
		t.Errorf("the change itself is not logged:\n%s", log)
	}
}

// A secret is hidden in every kind of value, and so is a value in its place.
func TestSecretsAreHiddenInEveryShape(t *testing.T) {
	type nested struct {
		Password string
		Retries  int
	}
	type T struct {
		Tokens  []lifecycle.Secret
		ByName  map[string]lifecycle.Secret
		Lists   map[string][]lifecycle.Secret
		Pointer *lifecycle.Secret
		Addr    netip.Addr `secret:"true"`
		DB      nested     `koanf:"db" secret:"true"`
		DBs     []nested   `koanf:"dbs" secret:"true"`
		Logins  []struct{ Key lifecycle.Secret }
		Login   struct{ Key lifecycle.Secret }
	}
	quietly := func(environ []string) []Option {
		return []Option{WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(nil)}
	}
	var seen strings.Builder
	for _, content := range []string{
		"tokens: hunter2", "tokens: [12345678]", "by_name: hunter2", "by_name: {a: 12345678}", "lists: {a: hunter2}", "lists: {a: [12345678]}",
		"pointer: 12345678", "addr: hunter2", "db: hunter2", "db: {password: 12345678}", "db: {retries: hunter2}",
		"dbs: hunter2", "dbs: [hunter2]", "dbs: [{retries: hunter2}]", "logins: hunter2", "logins: [hunter2]", "login: hunter2",
	} {
		_, err := Load[T](write(t, "service.yaml", content), quietly(nil)...)
		if err == nil {
			t.Errorf("%q is taken", content)
		}
		fmt.Fprintln(&seen, err)
	}
	for _, variable := range []string{"SERVICE_BY_NAME=hunter2", "SERVICE_ADDR=hunter2", "SERVICE_DB_RETRIES=hunter2"} {
		_, err := Load[T]("", quietly([]string{variable})...)
		if err == nil {
			t.Errorf("%q is taken", variable)
		}
		fmt.Fprintln(&seen, err)
	}
	if _, err := Load[lifecycle.Config](write(t, "service.yaml", "lifecycle: hunter2"), append(quietly(nil), WithSection("lifecycle"))...); err == nil {
		t.Error("a section that is none is taken")
	} else {
		fmt.Fprintln(&seen, err)
	}

	log := &logBuffer{}
	path := write(t, "service.yaml", "tokens: [hunter2]\ndb: {password: hunter2}\n")
	live, err := Open[T](path, append(quietly(nil), WithLogger(slog.New(slog.NewTextHandler(log, nil))))...)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, "tokens: [hunter2, hunter2]\npointer: hunter2\ndb: {password: hunter2hunter2, retries: 12345678}\ndbs: [{password: hunter2}]\nlogins: [{key: hunter2}]\n")
	if err := live.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(&seen, log, live.Settings())
	if s := seen.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "12345678") {
		t.Errorf("a secret is shown:\n%s", s)
	}
	if !strings.Contains(log.String(), "db.password: [secret] -> [secret]") {
		t.Errorf("the change itself is not logged:\n%s", log)
	}
}

func TestSettingsSayWhoWon(t *testing.T) {
	path := write(t, "service.yaml", "\npoll: 1s\nworkers: 5\n")
	live, err := Open[service](path, WithEnvPrefix("SERVICE"), WithEnviron([]string{"SERVICE_POLL=2s"}), WithArgs([]string{"-poll=3s"}), WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{Key: "poll", Value: "3s", Source: "flag -poll", Lost: []string{path + ":2: 1s", "environment SERVICE_POLL: 2s"}},
		{Key: "workers", Value: "5", Source: path + ":3"},
	}
	if got := live.Settings(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}
