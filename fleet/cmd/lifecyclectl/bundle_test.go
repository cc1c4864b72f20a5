package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// unpacked returns the files of an archive.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(text)
	}
}

// The archive has what support needs, and no secret. What is missing is named.
func TestBundle(t *testing.T) {
	s := newSite(t)
	if err := s.process("missions", "m-1", nil); err != nil {
		t.Fatal(err)
	}
	const why = `dial postgres://ada:hunter2@db/missions: {"password":"hunter2"} token=hunter2`
	if _, err := s.fleet.Suspend(t.Context(), "missions.m-1", why, "ada"); err != nil {
		t.Fatal(err)
	}
	url, err := s.serve(s.config())
	if err != nil {
		t.Fatal(err)
	}
	brokertest.Await(t, "the journal", func() bool { // it is written beside the announcement
		list, _, err := s.fleet.Events(t.Context(), presence.EventQuery{Kinds: []string{"joined"}, Limit: 1})
		return err == nil && len(list) > 0
	})
	brokertest.Await(t, "the settings", func() bool { // a machine that is suspended for a second gets no answer
		_, err := s.fleet.Settings(t.Context(), "missions.m-1", "ada")
		return err == nil
	})
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if code, out := ctl(t, url, "bundle", "--file", file, "--logs", "--stacks", "--config"); code != cli.ExitOK {
		t.Fatalf("bundle: %d %s", code, out)
	}
	files := unpacked(t, file)
	for name, want := range map[string]string{
		"about.txt": url, "whoami.json": `"loopback"`, "doctor.json": "findings", "processes.json": `"missions.m-1"`, "events.json": `"joined"`, "audit.json": "entries",
		"workflows.json": `"drone-survey"`, "workers.json": "workers", "logs/missions.m-1.txt": "msg=hello", "stacks/missions.m-1.txt": "goroutine ", "config/missions.m-1.json": "service.yaml:3",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not have %s: %.500s", name, want, files[name])
		}
	}
	for name, text := range files {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has a secret: %s", name, text)
		}
		if strings.HasSuffix(name, ".json") && !json.Valid([]byte(text)) {
			t.Errorf("%s is not JSON: %.500s", name, text)
		}
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the archive: %v, %v", info.Mode(), err)
	}

	s.halt()
	if code, out := ctl(t, url, "bundle", "--file", file); code != cli.ExitUnreachable {
		t.Errorf("without a server: %d %s", code, out)
	}
}
