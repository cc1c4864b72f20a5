package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/internal/redact"
	"github.com/pleme-io/lifecycle-go/worker"
)

// ErrNotConnected is wrapped by the error of a probe while there is no connection. The
// Broker reconnects without limit; restarting the process does not help.
var ErrNotConnected = errors.New("not connected to NATS")

// Broker is a connection to a NATS with JetStream and, if there is one, the embedded
// server. All methods may be called concurrently. Register [Broker.Close] as a shutdown
// hook of an App: it runs when the units, which may write until then, have returned.
type Broker struct {
	js     jetstream.JetStream
	nc     *nats.Conn
	opts   *server.Options // of the embedded server; nil for an external one
	unlock func()          // releases the store directory; nil for an external one
	cfg    Config
	again  atomic.Bool // the connection came back, so what the configuration declares may be missing
	reboot sync.Mutex  // held while the embedded server is restarted or closed
	log    *slog.Logger
	once   sync.Once
	err    error       // of Close
	blind  atomic.Bool // the server did not answer checkExternal, as it does without the permission

	mu  sync.Mutex     // guards srv
	srv *server.Server // nil for an external one
}

// Connect starts the embedded server, or connects to the external one, and creates the
// buckets and streams of the configuration that are missing. It returns when JetStream
// answers. After an error nothing is left running. ctx bounds the attempt only; the
// Broker outlives it. A server that takes the connection and does not greet holds the attempt for two
// seconds, also when ctx ends before, and until a later deadline of ctx for ten at most. That is for one
// URL of a list: the next ones have the same time each, and so has each reconnect.
//
// Connect returns a [*SpecError] for a bucket or a stream that differs from its
// declaration. It does not change it: it may belong to another program, and a change
// may lose data.
func Connect(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	err := cfg.Validate()
	if cfg.URL == "" && cfg.StoreDir == "" {
		err = errors.Join(errNoServer, err)
	}
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	b := &Broker{log: cfg.Logger.With("broker", cfg.Name)}
	if cfg.URL != "" && cfg.StoreDir != "" {
		b.log.Info("url is set, so store_dir is not used", "server", where(cfg), "store_dir", cfg.StoreDir)
	}
	if err := b.open(ctx, cfg); err != nil {
		_ = b.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return b, nil
}

func (b *Broker) open(ctx context.Context, cfg Config) error {
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(cfg.ReconnectWait),
		nats.ReconnectJitter(cfg.ReconnectWait/4, cfg.ReconnectWait),
		nats.PingInterval(20 * time.Second),
		// Without this the client would buffer writes while it is disconnected. Such
		// a write gets no answer in time, and the server may still carry it out
		// minutes later. With -1 the write fails at once.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				b.log.Warn("disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			b.log.Info("connected again", "server", nc.ConnectedServerName())
			b.again.Store(true)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			b.log.Warn("asynchronous error", "error", err)
		}),
	}
	if cfg.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	if cfg.URL == "" {
		if err := b.embed(ctx, cfg); err != nil {
			return fmt.Errorf("embed a NATS server on %s: %w", cfg.StoreDir, err)
		}
		opts = append(opts, nats.InProcessServer(inProcess{b}))
		if b.opts.Authorization != "" {
			opts = append(opts, nats.Token(b.opts.Authorization))
		}
	} else {
		more, err := cfg.options()
		if err != nil {
			return fmt.Errorf("connect to %s: %w", where(cfg), err)
		}
		opts = append(opts, more...)
	}
	if deadline, ok := ctx.Deadline(); ok {
		opts = append(opts, nats.Timeout(min(max(time.Until(deadline), nats.DefaultTimeout), handshakeTime)))
	}
	nc, err := nats.Connect(cfg.URL, opts...) // each URL has 2 s, or until ctx's deadline when that is longer
	var invalid *url.Error
	if errors.As(err, &invalid) {
		err = invalid.Err // the rest of it quotes the URL
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", where(cfg), err)
	}
	b.nc = nc
	b.js, err = jetstream.New(nc)
	if cfg.Domain != "" {
		b.js, err = jetstream.NewWithDomain(nc, cfg.Domain)
	}
	if err != nil {
		return fmt.Errorf("use JetStream of %s: %w", where(cfg), err)
	}
	if err := answers(ctx, b.js); err != nil {
		return fmt.Errorf("use JetStream of %s: %w", where(cfg), err)
	}
	b.cfg = cfg
	err = Ensure(ctx, b.js, cfg.Buckets, cfg.Streams)
	if last := nc.LastError(); errors.Is(err, context.DeadlineExceeded) && errors.Is(last, nats.ErrPermissionViolation) {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return err
}

// handshakeTime is the longest that a server may take to greet a client. The client's timeout is also
// that of each reconnect, and while it lasts every call of the connection waits, Close too.
const handshakeTime = 10 * time.Second

// where names the server for an error, without the credentials that its URL may have.
func where(cfg Config) string {
	if cfg.URL == "" {
		return "the embedded server on " + cfg.StoreDir
	}
	return redact.Text(cfg.URL)
}

// answers waits until JetStream answers. It does not answer while a cluster has no
// leader or a server still recovers its streams.
func answers(ctx context.Context, js jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	wait := worker.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	for failures := 1; ; failures++ {
		attempt, done := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.AccountInfo(attempt)
		done()
		isOff := errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount)
		if err == nil || isOff {
			return err
		}
		if last := js.Conn().LastError(); errors.Is(last, nats.ErrPermissionViolation) {
			return fmt.Errorf("the account has no permission to ask: %w", last) // and so gets no answer
		}
		if over := wait.Sleep(ctx, failures); over != nil {
			return fmt.Errorf("%w; the last answer was: %w", over, err)
		}
	}
}

// JetStream returns the JetStream context. It is the same for every call.
func (b *Broker) JetStream() jetstream.JetStream { return b.js }

// Conn returns the underlying connection.
func (b *Broker) Conn() *nats.Conn { return b.nc }

// Embedded reports whether the server is in this process.
func (b *Broker) Embedded() bool { return b.server() != nil }

// ClientURL returns the URL on which other processes reach the server: the open port of
// the embedded one, or the external one that this process is connected to. It is empty
// when there is no open port.
func (b *Broker) ClientURL() string {
	srv := b.server()
	if srv == nil {
		return b.nc.ConnectedUrl()
	}
	if srv.Addr() == nil {
		return ""
	}
	return srv.ClientURL()
}

// Check asks the server for a sign of life. It is a readiness probe:
// app.Probe("nats", b). Do not use it as a liveness probe: restarting a process because
// NATS is away gains nothing.
//
// After the connection has come back Check creates the buckets and streams of the configuration
// that the server has lost, such as one that was started on an empty disk, and logs which. What
// was in them stays lost.
//
// Check also finds out whether a write to one of the declared buckets has failed on the server's
// disk: such a server takes no writes until it is started again, and Check returns the reason.
// When the server is embedded and the disk has space, Check restarts the server in this process,
// and the connection comes back by itself. For an external server Check needs the permission to
// purge the buckets' streams; without it, it does not find out.
func (b *Broker) Check(ctx context.Context) error {
	if err := b.answering(ctx); err != nil {
		return err
	}
	if err := b.ensureAgain(ctx); err != nil {
		return err
	}
	if b.Embedded() {
		return b.checkWrites(ctx)
	}
	return b.checkExternal(ctx)
}

// ensureAgain makes what the server has lost while the connection was broken.
func (b *Broker) ensureAgain(ctx context.Context) error {
	if !b.again.Swap(false) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var lost []string
	err := ensure(ctx, b.js, b.cfg.Buckets, b.cfg.Streams, func(what string) { lost = append(lost, what) })
	if len(lost) > 0 {
		b.log.Error("the server has lost what this process declares; made it again, empty",
			"missing", strings.Join(lost, ", "))
	}
	if err != nil {
		b.again.Store(true)
		return fmt.Errorf("make what the server has lost: %w", err)
	}
	return nil
}

// answerTime bounds one question to the server.
const answerTime = 5 * time.Second

// answering asks the server for a sign of life.
func (b *Broker) answering(ctx context.Context) error {
	if !b.nc.IsConnected() {
		return fmt.Errorf("%w: the connection is %v", ErrNotConnected, b.nc.Status())
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime) // the call refuses a context without a deadline
	defer cancel()
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("%w: the server does not answer: %w", ErrNotConnected, err)
	}
	return nil
}

// Drain ends every subscription once it has handled the messages that it has received,
// and sends the messages that wait in the client. Publishing works until then, and then
// the connection closes by itself. When ctx ends first, Drain returns ctx's error and
// the connection is still open.
func (b *Broker) Drain(ctx context.Context) error {
	if b.nc == nil || b.nc.IsClosed() {
		return nil
	}
	ended := b.nc.StatusChanged(nats.CLOSED)
	defer b.nc.RemoveStatusListener(ended)
	switch err := b.nc.Drain(); {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionReconnecting):
		return nil // no server is there to send anything to
	case err != nil && !errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("drain the connection: %w", err)
	}
	for !b.nc.IsClosed() {
		select {
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("drain the connection: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Close drains the connection, closes it, and shuts the embedded server down. When ctx
// ends first, it closes the rest without draining. A second call waits for the first
// and returns the same error.
func (b *Broker) Close(ctx context.Context) error {
	b.once.Do(func() {
		b.err = b.Drain(ctx)
		if b.nc != nil {
			b.nc.Close()
		}
		b.reboot.Lock()
		defer b.reboot.Unlock()
		if srv := b.server(); srv != nil {
			srv.Shutdown()
			srv.WaitForShutdown()
		}
		if b.unlock != nil {
			b.unlock()
		}
	})
	return b.err
}
