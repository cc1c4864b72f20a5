package broker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// TestFullDisk fills the disk of an embedded server and makes room again. The probe
// says why it fails, and brings the server back with everything that it acknowledged.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("needs a disk of its own, and root to mount it: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	b := brokertest.Connect(t, broker.Config{
		StoreDir: filepath.Join(dir, "nats"), ReconnectWait: 10 * time.Millisecond,
		Buckets: []jetstream.KeyValueConfig{{Bucket: "B", History: 5}},
	})
	ctx := testContext(t)
	kv, err := b.JetStream().KeyValue(ctx, "B")
	must(t, err)
	_, err = kv.PutString(ctx, "kept", "before")
	must(t, err)
	must(t, b.Check(ctx))
	full := filepath.Join(dir, "full")
	fill(t, full)
	data := make([]byte, 100<<10)
	for n := 0; ; n++ {
		brief, cancel := context.WithTimeout(ctx, time.Second)
		_, err := kv.Put(brief, "big", data)
		cancel()
		if err != nil {
			break
		}
		if n > 1000 {
			t.Fatal("the disk does not become full")
		}
	}
	brokertest.Await(t, "the probe to fail", func() bool {
		brief, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err := b.Check(brief)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "no space left") {
			t.Logf("the probe says: %v", err)
		}
		return err != nil && strings.Contains(err.Error(), "no space left")
	})
	must(t, os.Remove(full))
	brokertest.Await(t, "writes to be taken again", func() bool {
		brief, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if err := b.Check(brief); err != nil {
			return false
		}
		_, err := kv.PutString(brief, "again", "after")
		return err == nil
	})
	if e, err := kv.Get(ctx, "kept"); err != nil || string(e.Value()) != "before" {
		t.Errorf("what was acknowledged: %v, %v", e, err)
	}
}

// The probe of a process whose external server has a full disk says so, and goes on saying so
// when there is space again, until the server is started again.
func TestFullDiskOfAnExternalServer(t *testing.T) {
	dir, err := os.MkdirTemp("", "") // the folder of t.TempDir is below the first TMPDIR
	must(t, err)
	t.Cleanup(func() { must(t, os.Remove(dir)) })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skip("needs a disk of its own, and root to mount it: ", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	t.Setenv("TMPDIR", dir) // of the server's data
	site := brokertest.NewSite(t)
	b := site.Connect(t, broker.Config{Buckets: []jetstream.KeyValueConfig{{Bucket: "B", History: 5}}})
	ctx := testContext(t)
	kv, err := b.JetStream().KeyValue(ctx, "B")
	must(t, err)
	_, err = kv.PutString(ctx, "kept", "before")
	must(t, err)
	must(t, b.Check(ctx))
	full := filepath.Join(dir, "full")
	fill(t, full)
	for n := 0; ; n++ {
		brief, cancel := context.WithTimeout(ctx, time.Second)
		_, err = kv.Put(brief, "big", make([]byte, 100<<10))
		cancel()
		if err != nil {
			break
		}
		if n > 1000 {
			t.Fatal("the disk does not become full")
		}
	}
	brokertest.Await(t, "the probe to fail", func() bool {
		err := b.Check(ctx)
		return err != nil && strings.Contains(err.Error(), "no space left")
	})
	must(t, os.Remove(full))
	site.Stop()
	site.Start()
	brokertest.Await(t, "writes to be taken again", func() bool {
		if err := b.Check(ctx); err != nil {
			return false
		}
		_, err := kv.PutString(ctx, "again", "after")
		return err == nil
	})
	if e, err := kv.Get(ctx, "kept"); err != nil || string(e.Value()) != "before" {
		t.Errorf("what was acknowledged: %v, %v", e, err)
	}
}

// fill writes a file until there is no space.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	must(t, f.Close())
}
