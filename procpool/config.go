package procpool

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Eviction says which worker makes room for another. Only ready workers do,
// unless the caller says otherwise.
type Eviction string

// The strategies.
const (
	LRU       Eviction = "lru"        // the one whose last activity is longest ago; the default
	Oldest    Eviction = "oldest"     // the one that was spawned first
	LeastUsed Eviction = "least_used" // the one that has processed the fewest queries
)

// Off turns a limit of a [Config] off whose zero value has a default.
const Off = -1

// Config describes a pool. The zero value of a field is its default.
type Config struct {
	// Name tells the pool from others: in errors, events, metrics, and the names
	// of its workers, NAME/1, NAME/2 …. Defaults to "procpool".
	Name string
	// Command makes the command of one worker. It is called for each spawn,
	// since an exec.Cmd cannot be used twice, one call at a time, and has to
	// return soon: nothing bounds it. The worker finds the socket to connect to in
	// its environment (wire.EnvSocket). What it
	// writes to standard error is kept for the error of a crash, and goes to the
	// command's Stderr too when that is set.
	Command func() *exec.Cmd

	// MinWorkers are started with the pool and kept. Defaults to 0: workers are
	// started as they are needed.
	MinWorkers int
	// MaxWorkers bounds the workers. Defaults to 1.
	MaxWorkers int
	// MaxQueue bounds the queries that wait for a worker, first come, first
	// served. At the default 0 none waits: a query that no worker can take, be it
	// by one that is started for it, is rejected at once. (A query that waits for
	// a worker which is being started for it does not count.)
	MaxQueue int
	// Eviction chooses the worker that makes room. Defaults to LRU.
	Eviction Eviction
	// KeyPerWorker keeps keys apart: a worker serves queries of one key, or
	// queries without a key, as long as it lives, and one that serves another key
	// is evicted to make room for a new one. Without it a worker may have many
	// keys.
	KeyPerWorker bool

	// StartTimeout bounds the time from spawn to ready. Defaults to 30 s.
	StartTimeout time.Duration
	// QueryTimeout bounds a query, its time in the queue included, unless its
	// context ends earlier. Defaults to 1 minute.
	QueryTimeout time.Duration
	// CancelGrace is how long a worker may take to confirm that it has stopped
	// with a query that was cancelled, before it is stopped itself. Defaults to
	// 5 s.
	CancelGrace time.Duration
	// ShutdownGrace is how long a worker may take to end after the shutdown
	// message, before it gets SIGTERM. Defaults to 5 s.
	ShutdownGrace time.Duration
	// KillGrace is how long a worker may take to end after SIGTERM, before it
	// gets SIGKILL. Defaults to 2 s.
	KillGrace time.Duration
	// WriteTimeout bounds the write of one message to a worker, which has half of
	// it at least. One that has not been written then ends the worker. Defaults to
	// 10 s.
	WriteTimeout time.Duration
	// DrainTimeout is how long queries may take to finish after the pool was
	// asked to stop. Defaults to 30 s; the context given to Stop shortens it.
	DrainTimeout time.Duration

	// HealthInterval is how often a ready worker is asked whether it lives.
	// Defaults to 30 s; Off never asks.
	HealthInterval time.Duration
	// HealthTimeout is how long it may take to answer. Defaults to 5 s.
	HealthTimeout time.Duration

	// Recycle says when workers are replaced by fresh ones.
	Recycle Recycle
	// Backoff is the wait between failures to start and crashes in a row: a
	// worker that ends before it has answered a query is one. MaxRestarts and
	// Window do not apply, a pool does not give up; after BreakAfter failures the
	// breaker is open for that wait. Defaults to the worker package's.
	Backoff worker.Backoff
	// BreakAfter is how many failures in a row open the breaker: until the
	// backoff is over no worker is started and queries that need one are
	// rejected. Then one worker is tried. Before that many, queries wait for the
	// backoff. Defaults to 5; Off never opens it.
	BreakAfter int

	// MaxFrame bounds a message, in bytes with its newline. Defaults to 16 MiB.
	MaxFrame int
	// StreamBuffer is how many messages of a query are kept for a caller that
	// does not read them, before its worker is held up. Defaults to 16.
	StreamBuffer int
	// StderrTail is how many bytes of a worker's standard error are kept.
	// Defaults to 8 KiB.
	StderrTail int
	// SocketDir is the folder for sockets. It is made with mode 0700 when it is
	// not there; one that belongs to somebody else or that others can enter is
	// refused. Sockets in it that are older than 5 s and that
	// nobody listens on are removed at the start.
	// Several pools, also of several processes, may have the same; it stays when
	// they end, and is made again when it is missing. Defaults to procpool-UID in
	// the folder for temporary files.
	SocketDir string
	// Logger gets what has no other place to go: workers that fail, strangers at
	// the socket. Defaults to slog.Default.
	Logger *slog.Logger
}

// Recycle says when a worker has served its time. It then finishes its query, is
// told to shut down, and another one takes its place when it is needed. The zero
// value of a field is no limit.
type Recycle struct {
	MaxQueries int           // so many queries
	MaxAge     time.Duration // so long since it was ready
	MaxIdle    time.Duration // so long without a query; workers beyond MinWorkers are not replaced
	MaxRSS     int64         // so many bytes of memory that are its own (Linux)
	// Jitter lowers each limit of each worker by up to this part of it, so that
	// workers that were started together are not recycled together. Defaults to
	// 0.1; Off turns it off.
	Jitter float64
	// AtOnce is how many workers may be on their way out at a time because of
	// these limits. Defaults to 1.
	AtOnce int
	// Every is how often age, idleness and memory are looked at. Defaults to 1 s.
	Every time.Duration
}

// WithDefaults returns a copy in which every field that has a default is set.
func (c Config) WithDefaults() Config {
	or(&c.Name, "procpool")
	or(&c.MaxWorkers, max(1, c.MinWorkers))
	or(&c.Eviction, LRU)
	or(&c.StartTimeout, 30*time.Second)
	or(&c.QueryTimeout, time.Minute)
	or(&c.CancelGrace, 5*time.Second)
	or(&c.ShutdownGrace, 5*time.Second)
	or(&c.KillGrace, 2*time.Second)
	or(&c.WriteTimeout, 10*time.Second)
	or(&c.DrainTimeout, 30*time.Second)
	or(&c.HealthInterval, 30*time.Second)
	or(&c.HealthTimeout, 5*time.Second)
	or(&c.BreakAfter, 5)
	or(&c.MaxFrame, wire.DefaultMaxFrame)
	or(&c.StreamBuffer, 16)
	or(&c.StderrTail, 8<<10)
	or(&c.Recycle.Jitter, 0.1)
	or(&c.Recycle.AtOnce, 1)
	or(&c.Recycle.Every, time.Second)
	c.Backoff = c.Backoff.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names each field that makes no sense, with what would.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.Command == nil, "Command is nil, want a function that makes the command of a worker")
	bad(c.MaxWorkers < 1, "MaxWorkers is %d, want 1 or more", c.MaxWorkers)
	bad(c.MinWorkers < 0 || c.MinWorkers > c.MaxWorkers, "MinWorkers is %d, want 0 to MaxWorkers, which is %d", c.MinWorkers, c.MaxWorkers)
	bad(c.MaxQueue < 0, "MaxQueue is %d, want 0 or more", c.MaxQueue)
	bad(c.Eviction != LRU && c.Eviction != Oldest && c.Eviction != LeastUsed, "Eviction is %q, want %q, %q or %q", c.Eviction, LRU, Oldest, LeastUsed)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"StartTimeout", c.StartTimeout},
		{"QueryTimeout", c.QueryTimeout},
		{"CancelGrace", c.CancelGrace},
		{"ShutdownGrace", c.ShutdownGrace},
		{"KillGrace", c.KillGrace},
		{"WriteTimeout", c.WriteTimeout},
		{"DrainTimeout", c.DrainTimeout},
		{"HealthTimeout", c.HealthTimeout},
		{"Recycle.Every", c.Recycle.Every},
	} {
		bad(d.value < 0, "%s is %v, want more than 0", d.name, d.value)
	}
	bad(c.HealthInterval < 0 && c.HealthInterval != Off, "HealthInterval is %v, want more than 0, or Off", c.HealthInterval)
	bad(c.BreakAfter < Off, "BreakAfter is %d, want 1 or more, or Off", c.BreakAfter)
	bad(c.MaxFrame < 256, "MaxFrame is %d bytes, want 256 or more", c.MaxFrame)
	bad(c.StreamBuffer < 1, "StreamBuffer is %d, want 1 or more", c.StreamBuffer)
	bad(c.StderrTail < 0, "StderrTail is %d bytes, want 0 or more", c.StderrTail)
	r := c.Recycle
	bad(r.MaxQueries < 0, "Recycle.MaxQueries is %d, want 0 or more", r.MaxQueries)
	bad(r.MaxAge < 0, "Recycle.MaxAge is %v, want 0 or more", r.MaxAge)
	bad(r.MaxIdle < 0, "Recycle.MaxIdle is %v, want 0 or more", r.MaxIdle)
	bad(r.MaxRSS < 0, "Recycle.MaxRSS is %d bytes, want 0 or more", r.MaxRSS)
	bad(r.MaxRSS > 0 && !knowsMemory, "Recycle.MaxRSS is %d, and on this system a process's memory is not known: want 0", r.MaxRSS)
	bad(r.Jitter != Off && !(r.Jitter >= 0 && r.Jitter < 1), "Recycle.Jitter is %v, want 0 to less than 1, or Off", r.Jitter)
	bad(r.AtOnce < 1, "Recycle.AtOnce is %d, want 1 or more", r.AtOnce)
	errs = append(errs, c.Backoff.Validate())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("procpool %s: %w", c.Name, err)
	}
	return nil
}
