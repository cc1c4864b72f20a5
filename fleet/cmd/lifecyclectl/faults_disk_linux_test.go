package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// The disk of a NATS server that is a program of its own becomes full: doctor and the front page
// say so, also when another program writes.
func TestFullDiskIsNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("TestStoreIsCompared in fleet/operator is the short version")
	}
	dir, err := os.MkdirTemp("", "") // the folder of t.TempDir is below the first TMPDIR
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4g"); err != nil {
		t.Skip("needs a disk of its own, and root to mount it: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	t.Setenv("TMPDIR", dir)
	server := brokertest.NewSite(t)
	b := server.Connect(t, siteBroker())
	s := newSiteOn(t, b, server.URL)
	cfg := s.config()
	cfg.Dependencies = []operator.Dependency{{Name: "NATS", Check: b.Check}}
	url, err := s.serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer of doctor:\n%s", last)
		}
	})
	brokertest.Await(t, "a fleet that is well", func() bool {
		var code int
		code, last = ctl(t, url, "doctor")
		return code == 0
	})
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"); err != nil { // the memory for 4 GiB is not there
		t.Fatal(err)
	}
	full, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := full.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if err := full.Close(); err != nil {
		t.Fatal(err)
	}
	s.named(t, url, []fault{{name: "a full disk", about: "NATS", rule: "store-refuses-writes", cause: "NATS takes no writes"}})
}
