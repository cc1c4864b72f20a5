package procpool

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Eviction chooses the worker that makes room for another. It chooses among the
// ready workers, unless the caller includes busy ones.
type Eviction string

// The strategies.
const (
	LRU       Eviction = "lru"        // the one that has been inactive longest; the default
	Oldest    Eviction = "oldest"     // the one that was spawned first
	LeastUsed Eviction = "least_used" // the one that has processed the fewest queries
)

// Off disables a limit of a [Config] whose zero value means its default.
const Off = -1

// Config describes a pool. The zero value of a field is its default. Its fields have keys
// for a file, such as max_workers: it may be a section of a service's configuration.
type Config struct {
	// Name identifies the pool in errors, events, metrics and the names of its
	// workers: NAME/1, NAME/2 …. Defaults to "procpool".
	Name string `koanf:"name"`
	// Command makes the command of one worker. The pool calls it for each spawn,
	// since an exec.Cmd cannot be used twice, and never concurrently. It must
	// return soon: the pool does not bound the call. The worker finds the socket to
	// connect to in its environment (wire.EnvSocket). The pool keeps the end of the
	// worker's standard error for the error of a crash, and copies it to the
	// command's Stderr when that is set. What a worker writes is logged otherwise; see
	// OutputLines. The pool adds a file to the command's ExtraFiles.
	Command func() *exec.Cmd `koanf:"-"`
	// Process shapes the process of each worker: worker.WithLimits and
	// worker.WithCgroup bound what it may use. The pool sets the grace by itself.
	Process []worker.ProcessOption `koanf:"-"`

	// MinWorkers is how many workers the pool starts at once and keeps. Defaults
	// to 0: the pool starts workers on demand.
	MinWorkers int `koanf:"min_workers"`
	// MaxWorkers bounds the number of workers. Defaults to 1.
	MaxWorkers int `koanf:"max_workers"`
	// Surge is by how many the workers may exceed MaxWorkers while successors become
	// ready: of workers that reach a limit of Recycle, and during [Pool.Reload].
	// Defaults to 1. With Off a worker that reaches a limit ends before its successor
	// starts.
	Surge int `koanf:"surge"`
	// MaxQueue bounds the queries that wait for a worker, first come, first
	// served unless FairShares says otherwise. Queries for which a
	// worker is starting do not count. With the default of 0 no query waits: the pool
	// rejects a query at once when every worker is busy and it cannot start another.
	MaxQueue int `koanf:"max_queue"`
	// FairShares has the callers that wait take turns, in place of first come, first
	// served: a [Caller] with many queries does not delay one with few. When the queue
	// is full, a query of a caller with few takes the place of the last one of the
	// caller with the most, which is rejected.
	FairShares bool `koanf:"fair_shares"`
	// Eviction chooses the worker that makes room. Defaults to LRU.
	Eviction Eviction `koanf:"eviction"`
	// KeyPerWorker dedicates each worker to one key, or to queries without a key,
	// for its whole life. A worker of another key is evicted to make room for a new
	// key. Without it a worker may serve many keys.
	KeyPerWorker bool `koanf:"key_per_worker"`
	// StarveAfter is how long a query may wait with KeyPerWorker while no worker may
	// serve its key. Then the next worker that becomes free, and that has lived so
	// long, ends to make room for it. Defaults to 1 s; Off disables it.
	StarveAfter time.Duration `koanf:"starve_after" off:"true"`

	// SlowAfter is how long a worker may have a query before the pool logs it, while it
	// runs, with the worker's stacks when it can show them. Defaults to 0: no query is
	// slow.
	SlowAfter time.Duration `koanf:"slow_after"`
	// Calls answers calls that workers make while they have a query.
	// Without it a call gets an error.
	Calls CallHandler `koanf:"-"`

	// StartTimeout bounds the time from spawn to ready. Defaults to 30 s.
	StartTimeout time.Duration `koanf:"start_timeout"`
	// QueryTimeout bounds a query, including its time in the queue, unless its
	// context ends earlier. A worker that can show its stacks gets up to 250 ms more
	// to do so; they stand in the [DeadlineError]. Defaults to 1 minute.
	QueryTimeout time.Duration `koanf:"query_timeout"`
	// CancelGrace is how long a worker may take to confirm that it stopped a
	// cancelled query; then the pool stops the worker. Defaults to 5 s.
	CancelGrace time.Duration `koanf:"cancel_grace"`
	// ShutdownGrace is how long a worker may take to end after the shutdown
	// message; then it gets SIGTERM. A worker that still has a query, because it was
	// evicted or the pool stops, is asked to cancel it first. Defaults to 5 s.
	ShutdownGrace time.Duration `koanf:"shutdown_grace"`
	// KillGrace is how long a worker may take to end after SIGTERM; then it gets
	// SIGKILL. Defaults to 2 s.
	KillGrace time.Duration `koanf:"kill_grace"`
	// WriteTimeout bounds the write of one message to a worker. When a write times out,
	// the pool ends the worker. Defaults to 10 s.
	WriteTimeout time.Duration `koanf:"write_timeout"`
	// DrainTimeout is how long queries may take to finish after the pool was
	// asked to stop. Defaults to 30 s; the context given to Stop shortens it.
	DrainTimeout time.Duration `koanf:"drain_timeout"`

	// HealthInterval is how often the pool sends a health check to a ready worker.
	// Defaults to 30 s; Off disables health checks.
	HealthInterval time.Duration `koanf:"health_interval" off:"true"`
	// HealthTimeout is how long a worker may take to answer one. Defaults to 5 s.
	HealthTimeout time.Duration `koanf:"health_timeout"`

	// Recycle says when workers are replaced by fresh ones.
	Recycle Recycle `koanf:"recycle"`
	// Poison bounds what queries can do that kill their workers.
	Poison Poison `koanf:"poison"`
	// Backoff is the wait after consecutive failed starts, and after consecutive
	// deaths of workers that were ready and had no query. Meanwhile queries wait. A
	// worker that dies while it has a query is replaced at once. The pool never stops
	// trying, so MaxRestarts and Window do not apply. Defaults to the worker
	// package's.
	Backoff worker.Backoff `koanf:"backoff"`
	// BreakAfter is how many consecutive failed starts open the breaker: workers
	// that have ended before they were ready. While it is open the pool starts no
	// worker and rejects queries that need one. When the backoff is over the pool
	// tries one worker. After a failed start a worker gets no query before it has
	// answered a health check; when HealthInterval is Off, ready is enough.
	// Defaults to 5; Off never opens the breaker.
	BreakAfter int `koanf:"break_after"`

	// MaxFrame bounds a message, in bytes including its newline, and with the bytes that
	// follow its line, from 256 bytes to 2 GiB less one. Defaults to 16 MiB.
	MaxFrame int `koanf:"max_frame"`
	// MaxAnswer bounds a message of a worker as MaxFrame does, and together what the pool
	// holds of a query's messages: parts that the caller has not read, for which the worker
	// waits, and calls without an answer, beyond which a call is refused. Defaults to MaxFrame.
	MaxAnswer int `koanf:"max_answer"`
	// StreamBuffer is how many unread messages the pool keeps for a query; when
	// they are that many, the worker has to wait. Defaults to 16.
	StreamBuffer int `koanf:"stream_buffer"`
	// OutputLines is how many lines a second of each worker's standard output, and of
	// its standard error, the pool logs, with the worker's name, as [worker.LogLines] does. A
	// stream for which Command sets a writer is not logged. Defaults to 100; Off logs none.
	OutputLines int `koanf:"output_lines"`
	// StderrTail is how many bytes of a worker's standard error the pool keeps.
	// Defaults to 8 KiB.
	StderrTail int `koanf:"stderr_tail"`
	// SocketDir is the folder for sockets. Start makes it with mode 0700 when it
	// does not exist, and refuses one that belongs to another user or that others
	// can enter. It removes sockets older than 5 s on which no process listens.
	// Several pools, also of several processes, may share the folder. They leave it
	// in place when they end, and make it again when it is missing. New makes a relative
	// path absolute. Defaults to procpool-UID in the folder for temporary files.
	SocketDir string `koanf:"socket_dir"`
	// Inherit gives a worker its connection as a descriptor that it inherits
	// (wire.EnvFD), in place of a socket to connect to. SocketDir is not used then. It
	// is for workers that cannot enter that folder, for example because Command lets
	// them run as another user. A worker that is not written for that does not find it.
	Inherit bool `koanf:"inherit"`
	// Logger logs workers that fail and connections from unexpected processes. A handler
	// that panics loses its record and ends nothing.
	// Defaults to the logger of the App that runs the pool, and else to slog.Default.
	Logger *slog.Logger `koanf:"-"`
}

// Recycle limits the life of a worker. A worker that reaches a limit goes on serving
// until its successor is ready, so it may exceed the limit a little. Then it finishes
// its query and shuts down. A worker that was idle for MaxIdle, or that has served no
// query, ends without a successor unless MinWorkers needs one. With Config.Surge Off every
// worker ends without a successor. A field that is zero limits nothing.
type Recycle struct {
	MaxQueries int           `koanf:"max_queries"` // queries served
	MaxAge     time.Duration `koanf:"max_age"`     // time since it became ready
	MaxIdle    time.Duration `koanf:"max_idle"`    // time without a query
	MaxRSS     int64         `koanf:"max_rss"`     // bytes of private memory (Linux)
	// Jitter lowers each limit of each worker by up to this fraction, so that
	// workers that started together are not recycled together. Defaults to 0.1;
	// Off disables it.
	Jitter float64 `koanf:"jitter"`
	// AtOnce is how many workers may be replaced at a time because of these limits.
	// Defaults to 1.
	AtOnce int `koanf:"at_once"`
	// Every is how often the pool checks age, idleness and memory. Defaults to 1 s.
	Every time.Duration `koanf:"every"`
}

// WithDefaults returns a copy in which every field that has a default is set.
func (c Config) WithDefaults() Config {
	or(&c.Name, "procpool")
	or(&c.MaxWorkers, max(1, c.MinWorkers))
	or(&c.Surge, 1)
	or(&c.Eviction, LRU)
	or(&c.StarveAfter, time.Second)
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
	or(&c.MaxAnswer, c.MaxFrame)
	or(&c.StreamBuffer, 16)
	or(&c.OutputLines, 100)
	or(&c.StderrTail, 8<<10)
	or(&c.Recycle.Jitter, 0.1)
	or(&c.Recycle.AtOnce, 1)
	or(&c.Recycle.Every, time.Second)
	or(&c.Poison.For, 10*time.Minute)
	or(&c.Poison.Deaths, 5)
	or(&c.Poison.Window, time.Minute)
	c.Backoff = c.Backoff.WithDefaults()
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// title names the pool in an error of New.
func (c Config) title() string {
	if c.Name == "" {
		return "procpool"
	}
	return "procpool " + c.Name
}

func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names each invalid field and says which values are valid. Command, which has no
// key, is the business of [New].
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(c.MaxWorkers < 1, "MaxWorkers is %d, want 1 or more", c.MaxWorkers)
	bad(c.MinWorkers < 0 || c.MinWorkers > c.MaxWorkers,
		"MinWorkers is %d, want 0 to MaxWorkers, which is %d", c.MinWorkers, c.MaxWorkers)
	bad(c.Surge < Off, "Surge is %d, want 1 or more, or Off", c.Surge)
	bad(c.MaxQueue < 0, "MaxQueue is %d, want 0 or more", c.MaxQueue)
	bad(c.Eviction != LRU && c.Eviction != Oldest && c.Eviction != LeastUsed,
		"Eviction is %q, want %q, %q or %q", c.Eviction, LRU, Oldest, LeastUsed)
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
		{"SlowAfter", c.SlowAfter},
		{"Recycle.Every", c.Recycle.Every},
	} {
		bad(d.value < 0, "%s is %v, want more than 0", d.name, d.value)
	}
	bad(c.HealthInterval < 0 && c.HealthInterval != Off, "HealthInterval is %v, want more than 0, or Off", c.HealthInterval)
	bad(c.StarveAfter < 0 && c.StarveAfter != Off, "StarveAfter is %v, want more than 0, or Off", c.StarveAfter)
	bad(c.BreakAfter < Off, "BreakAfter is %d, want 1 or more, or Off", c.BreakAfter)
	bad(c.MaxFrame < 256 || c.MaxFrame > math.MaxInt32,
		"MaxFrame is %d bytes, want 256 to %d", c.MaxFrame, math.MaxInt32)
	bad(c.MaxAnswer < 256 || c.MaxAnswer > c.MaxFrame,
		"MaxAnswer is %d bytes, want 256 to MaxFrame, which is %d", c.MaxAnswer, c.MaxFrame)
	bad(c.StreamBuffer < 1, "StreamBuffer is %d, want 1 or more", c.StreamBuffer)
	bad(c.OutputLines < Off, "OutputLines is %d, want 1 or more, or Off", c.OutputLines)
	bad(c.StderrTail < 0, "StderrTail is %d bytes, want 0 or more", c.StderrTail)
	r := c.Recycle
	bad(r.MaxQueries < 0, "Recycle.MaxQueries is %d, want 0 or more", r.MaxQueries)
	bad(r.MaxAge < 0, "Recycle.MaxAge is %v, want 0 or more", r.MaxAge)
	bad(r.MaxIdle < 0, "Recycle.MaxIdle is %v, want 0 or more", r.MaxIdle)
	bad(r.MaxRSS < 0, "Recycle.MaxRSS is %d bytes, want 0 or more", r.MaxRSS)
	bad(r.MaxRSS > 0 && !knowsMemory,
		"Recycle.MaxRSS is %d, and on this system a process's memory is not known: want 0", r.MaxRSS)
	bad(r.Jitter != Off && !(r.Jitter >= 0 && r.Jitter < 1), "Recycle.Jitter is %v, want 0 to less than 1, or Off", r.Jitter)
	bad(r.AtOnce < 1, "Recycle.AtOnce is %d, want 1 or more", r.AtOnce)
	bad(c.Poison.For < 0, "Poison.For is %v, want more than 0", c.Poison.For)
	bad(c.Poison.Deaths < Off, "Poison.Deaths is %d, want 1 or more, or Off", c.Poison.Deaths)
	bad(c.Poison.Window < 0, "Poison.Window is %v, want more than 0", c.Poison.Window)
	errs = append(errs, c.Backoff.Validate())
	return errors.Join(errs...)
}
