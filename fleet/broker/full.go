package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
)

// restartTime bounds the restart of the embedded server.
const restartTime = 30 * time.Second

// errShutDown says that the embedded server has shut JetStream down. It does that when a
// mirror, such as a journal, meets a full disk, and then answers no request.
var errShutDown = errors.New("the embedded server has shut JetStream down")

// checkWrites finds out whether the embedded server takes writes, and restarts it when
// it does not and the disk does.
func (b *Broker) checkWrites(ctx context.Context) error {
	if !b.reboot.TryLock() {
		return fmt.Errorf("%w: the embedded server is being started again", ErrNotConnected)
	}
	up := b.server().JetStreamEnabled()
	b.reboot.Unlock()
	err := errShutDown
	if up {
		if err = b.failedWrites(ctx); !errors.Is(err, canary.ErrNoWrites) {
			return err
		}
	}
	if ctx.Err() != nil {
		return err
	}
	if full := writable(b.opts.StoreDir); full != nil {
		return fmt.Errorf("%w: %w", err, full)
	}
	b.log.Error("the embedded server takes no writes though its disk does; starting it again", "error", err)
	if failed := b.restart(ctx); failed != nil {
		return fmt.Errorf("%w: restart the embedded server: %w", err, failed)
	}
	return nil
}

// externalTime bounds one question of checkExternal.
const externalTime = time.Second

// checkExternal finds out whether an external server takes writes.
func (b *Broker) checkExternal(ctx context.Context) error {
	if b.blind.Load() {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, externalTime)
	defer cancel()
	err := b.failedWrites(asking)
	// The server refuses by silence what the user may not ask.
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		b.blind.Store(true)
		b.log.Info("the server does not say whether it takes writes: this user may not purge the declared buckets")
		return nil
	}
	return err
}

// failedWrites returns an error when a write to a declared bucket has failed on the disk.
func (b *Broker) failedWrites(ctx context.Context) error {
	for _, bucket := range b.cfg.Buckets {
		if err := canary.Failed(ctx, b.js, bucket.Bucket); err != nil {
			return err
		}
	}
	return nil
}

// writable returns why nothing can be written to a folder.
func writable(dir string) error {
	name := filepath.Join(dir, "canary")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 1<<20)) // more than a server needs to start
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(name))
}

// restart stops the embedded server and starts another one on its folder. The
// connection finds it by itself.
func (b *Broker) restart(ctx context.Context) error {
	b.reboot.Lock()
	defer b.reboot.Unlock()
	if b.nc.IsClosed() {
		return ErrNotConnected
	}
	old := b.server()
	old.Shutdown()
	old.WaitForShutdown()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restartTime) // half of a restart helps no caller
	defer cancel()
	if err := b.boot(ctx); err != nil {
		return err
	}
	return answers(ctx, b.js)
}
