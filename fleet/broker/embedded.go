package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/pleme-io/lifecycle-go/fleet/internal/filelock"
)

// embed starts a server in this process and waits until it takes connections. After an
// error the caller calls Close, which stops what embed has started.
func (b *Broker) embed(ctx context.Context, cfg Config) error {
	dir, err := filepath.Abs(cfg.StoreDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if b.unlock, err = lock(filepath.Join(dir, "lock")); err != nil {
		return err
	}
	b.opts = &server.Options{
		ServerName:        cfg.Name,
		JetStream:         true,
		StoreDir:          dir,
		JetStreamMaxStore: cfg.MaxStore,
		SyncAlways:        cfg.Sync == SyncAlways,
		SyncInterval:      cfg.SyncEvery,
		DontListen:        cfg.Listen == "",
		NoSigs:            true, // the program handles signals
		NoLog:             true, // until SetLoggerV2
	}
	if cfg.Listen != "" {
		if b.opts.Host, b.opts.Port, err = address(cfg.Listen); err != nil {
			return fmt.Errorf("listen is %q: %w", cfg.Listen, err)
		}
	}
	if cfg.ListenTokenFile != "" {
		if b.opts.Authorization, err = readToken(cfg.ListenTokenFile); err != nil {
			return fmt.Errorf("listen_token_file: %w", err)
		}
	}
	return b.boot(ctx)
}

// readToken reads a file with one token. Its errors never have the token.
func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(data))
	if len(text) < 20 || strings.ContainsAny(text, " \t\r\n@/:") {
		return "", fmt.Errorf("%s has no token: want 20 characters or more, without spaces and without any of @ / : in it", file)
	}
	return text, nil
}

// lock takes the file for this process until unlock is called or the process ends. Two
// servers on one store directory would destroy the store.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := filelock.Take(f); err != nil {
		_ = f.Close()
		if errors.Is(err, filelock.ErrTaken) {
			err = errors.New("another server has the folder: give each process its own, or let the others reach this one by its URL")
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { _ = f.Close() }, nil
}

// boot starts a server with the options.
func (b *Broker) boot(ctx context.Context) error {
	srv, err := server.NewServer(b.opts.Clone())
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.srv = srv
	b.mu.Unlock()
	lines := &logger{log: b.log, fatal: make(chan string, 1)}
	srv.SetLoggerV2(lines, false, false, false)
	srv.Start()
	for !srv.ReadyForConnections(20 * time.Millisecond) {
		select {
		case line := <-lines.fatal:
			return errors.New(line)
		case <-ctx.Done():
			return fmt.Errorf("the server was not ready in time: %w", context.Cause(ctx))
		default:
		}
	}
	if addr, ok := srv.Addr().(*net.TCPAddr); ok {
		b.opts.Port = addr.Port // a server after this one has the same
	}
	return nil
}

// InProcessConn connects the client to the server that runs now. It implements
// nats.InProcessConnProvider.
func (p inProcess) InProcessConn() (net.Conn, error) { return p.b.server().InProcessConn() }

type inProcess struct{ b *Broker }

// server returns the embedded server, nil for none.
func (b *Broker) server() *server.Server {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.srv
}

// address splits a listen address into host and port. For a free port the server wants
// -1, not 0.
func address(listen string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(listen)
	if err == nil && text == "" {
		err = errors.New("want host:port") // LookupPort takes it for 0
	}
	if err == nil {
		port, err = net.LookupPort("tcp", text)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return host, port, err
}

// logger hands the server's log to slog. It logs the server's notices at a lower level,
// because the server is only a part of this program.
type logger struct {
	log   *slog.Logger
	fatal chan string // the first fatal line
}

func (l *logger) Noticef(format string, args ...any) { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l *logger) Warnf(format string, args ...any)   { l.log.Warn(fmt.Sprintf(format, args...)) }
func (l *logger) Errorf(format string, args ...any)  { l.log.Error(fmt.Sprintf(format, args...)) }
func (l *logger) Debugf(format string, args ...any)  { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l *logger) Tracef(format string, args ...any)  { l.log.Debug(fmt.Sprintf(format, args...)) }
func (l *logger) Fatalf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	l.log.Error(line)
	select {
	case l.fatal <- line:
	default:
	}
}
