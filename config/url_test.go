package config

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
)

type endpoints struct {
	Main  url.URL
	Other *url.URL
	All   []*url.URL
	Named map[string]url.URL
}

// WithDefaults returns the defaults.
func (endpoints) WithDefaults() endpoints {
	return endpoints{Main: url.URL{Scheme: "https", Host: "localhost", User: url.UserPassword("me", "hunter2")}}
}

// A URL is one text, and not a section with the fields of url.URL. A password in it is not
// shown.
func TestURL(t *testing.T) {
	load := func(content string, env []string, args []string) (*Live[endpoints], error) {
		return Open[endpoints]("svc.yaml", WithContent([]byte(content)), WithEnviron(env), WithArgs(args), WithLogger(quiet))
	}
	live, err := load("main: https://a.example:8443/x?y=z\nall: ['http://b', c]\nnamed: {d: 'http://d'}\n", []string{"SVC_OTHER=postgres://me:hunter2@db/x"}, []string{"-main=https://e"})
	if err != nil {
		t.Fatal(err)
	}
	got := live.Get()
	if named := got.Named["d"]; got.Main.String() != "https://e" || got.Other.Host != "db" || len(got.All) != 2 || got.All[0].Host != "b" || named.Host != "d" {
		t.Errorf("%+v", got)
	}
	if s := live.Settings(); s[0].Value != "https://e" || !strings.HasSuffix(s[0].Lost[0], ": https://a.example:8443/x?y=z") || s[1].Value != "postgres://me:xxxxx@db/x" {
		t.Errorf("the settings are %v", s)
	}
	for content, want := range map[string]string{
		"main: 'https://a:x'\n":       `svc.yaml:1: main is "https://a:x": want a URL, such as https://example.com/path`,
		"main: {scheme: https}\n":     "svc.yaml:1: main is a section with keys of its own: want a URL",
		"other: 5\n":                  "svc.yaml:1: other is 5: want a URL",
		"all: ['http://a b', 'c%']\n": "svc.yaml:1: all[0] is ",
	} {
		if _, err := load(content, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %s", content, err, want)
		}
	}
	at, _ := url.Parse("https://f")
	from, err := Load[endpoints]("", FromMap("settings", map[string]any{"main": at, "other": *at, "all": []*url.URL{at}}))
	if err != nil || from.Main.Host != "f" || from.Other.Host != "f" || from.All[0].Host != "f" {
		t.Errorf("of a program: %+v, %v", from, err)
	}
	keys, err := Keys[endpoints]("")
	if err != nil || keys[0].Type != "url.URL" || keys[0].Default != "https://me:xxxxx@localhost" || keys[2].Type != "list of url.URL" {
		t.Errorf("%+v, %v", keys, err)
	}
	schema, err := Schema[endpoints](nil)
	if err != nil || !strings.Contains(string(schema), `"default": "https://me:xxxxx@localhost",
      "type": "string"`) {
		t.Errorf("%s, %v", schema, err)
	}
}

// A text may be a URL, or several, such as those of a broker: their passwords and tokens are
// shown neither in faults nor in settings.
func TestATextDoesNotShowTheCredentialsOfItsURLs(t *testing.T) {
	type endpoint struct {
		URL     string
		All     []string
		Retries int
	}
	load := func(content string) (*Live[endpoint], error) {
		return Open[endpoint]("svc.yaml", WithContent([]byte(content)), WithEnviron(nil), WithArgs(nil), WithLogger(quiet))
	}
	live, err := load("url: 'nats://me:hunter2@a:4222,nats://hunter2@b:4222/x@y'\nall: ['https://me:hun@ter2@c', plain@d]\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{Key: "url", Value: `"nats://[secret]@a:4222,nats://[secret]@b:4222/x@y"`, Source: "svc.yaml:1"},
		{Key: "all", Value: `["https://[secret]@c", "plain@d"]`, Source: "svc.yaml:2"},
	}
	if got := live.Settings(); !reflect.DeepEqual(got, want) {
		t.Errorf("the settings are %v, want %v", got, want)
	}
	if live.Get().URL != "nats://me:hunter2@a:4222,nats://hunter2@b:4222/x@y" {
		t.Errorf("the value is %s", live.Get().URL)
	}
	_, err = load("retries: 'nats://me:hunter2@a'\n")
	if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "nats://[secret]@a") {
		t.Errorf("the fault is %v", err)
	}
}
