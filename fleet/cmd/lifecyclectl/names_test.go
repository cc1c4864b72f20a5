package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// fieldsOf returns the names of the fields in a JSON value, with the names above them.
func fieldsOf(t *testing.T, text string) []string {
	t.Helper()
	names := map[string]bool{}
	var visit func(at string, v any)
	visit = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, x := range v {
				names[at+name] = true
				visit(at+name+".", x)
			}
		case []any:
			for _, x := range v {
				visit(at, x)
			}
		}
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	visit("", v)
	return slices.Sorted(maps.Keys(names))
}

// REST and -o json name fields alike. -o json has those that are empty too.
func TestRESTAndJSONNameFieldsAlike(t *testing.T) {
	s := newSite(t)
	if err := s.mgr.Create(t.Context(), &survey{ID: "m-17", State: "flying", Org: "acme"}); err != nil {
		t.Fatal(err)
	}
	if err := s.process("web", "web-1", nil); err != nil {
		t.Fatal(err)
	}
	s.workers.die("thumbs", 3, 0)
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	for path, command := range map[string]string{
		"/definitions":                         "definitions",
		"/workflows/drone-survey":              "list drone-survey",
		"/workflows/drone-survey/m-17":         "get drone-survey m-17",
		"/workers/thumbs/deadletters":          "dead-letters thumbs",
		"/workflows/drone-survey/m-17/history": "history drone-survey m-17",
		"/processes":                           "processes list",
		"/processes/web.web-1":                 "processes get web.web-1",
		"/diagnosis":                           "doctor",
		"/whoami":                              "whoami",
	} {
		resp, err := http.Get(url + path) //nolint:noctx // the test ends with the server
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v %s", path, resp.StatusCode, err, text)
		}
		_, out := ctl(t, url, append(strings.Fields(command), "-o", "json")...)
		printed := fieldsOf(t, out)
		for _, name := range fieldsOf(t, string(text)) {
			if !slices.Contains(printed, name) {
				t.Errorf("%s of REST has the field %s, and %s -o json has not: %v", path, name, command, printed)
			}
		}
		for _, name := range printed { // the empty ones too
			if strings.Contains(name, "_") {
				t.Errorf("%s -o json has the field %s", command, name)
			}
		}
	}
}
