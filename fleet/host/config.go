package host

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Config holds the settings that an operator may tune. A field that is zero has its
// default. docs/guides/hosted.md has all of them in a table.
type Config struct {
	// Name is the prefix of the streams and buckets that the hosts of one fleet
	// share: the streams NAME_LOG, NAME_STATE, NAME_CODE, NAME_DEAD and NAME_LINES,
	// and the buckets NAME_WORKERS and NAME_MEMBERS. Their subjects begin with "$" and the
	// name in small letters. It consists of capital letters, digits and "_". Defaults to "HOST".
	Name string `koanf:"name"`
	// HostID identifies this host in the fleet. Defaults to the machine's name and
	// a random part, so every start is a new host.
	HostID string `koanf:"host_id"`
	// Replicas is the number of replicas of each shared stream and bucket: 1, 3 or
	// 5. A worker's consumer has as many as the stream of its topic. Defaults to 1.
	Replicas int `koanf:"replicas"`

	// RecoveryOff keeps the host from running any worker until [Host.Recover] is
	// called; WORKER_RECOVERY_ON_START=false in the environment.
	RecoveryOff bool `koanf:"recovery_off"`
	// LeaseTTL is how long the other hosts wait for a heartbeat of this host before
	// they take over its workers; WORKER_RECOVERY_LEASE_TTL_SECONDS in the
	// environment. The host sends a heartbeat every LeaseTTL/3. Defaults to 10 s, at
	// least 1 s.
	LeaseTTL time.Duration `koanf:"lease_ttl"`
	// AcquireTimeout bounds how long a start may take until NATS has answered and
	// the host has tried each of its workers once. After that time the probe says
	// that recovery failed, and recovery continues;
	// WORKER_RECOVERY_ACQUIRE_TIMEOUT_SECONDS in the environment. Defaults to 5 min.
	AcquireTimeout time.Duration `koanf:"acquire_timeout"`

	// RetryBase is how long a failed message waits before the next attempt. The
	// wait doubles with each attempt, up to RetryMax.
	// GROUP_LOCK_RETRY_BASE_DELAY_MS in the environment. Defaults to 500 ms.
	RetryBase time.Duration `koanf:"retry_base"`
	// RetryMax bounds that wait. Defaults to 1 min.
	RetryMax time.Duration `koanf:"retry_max"`
	// MaxRetries is how often the host tries a failed message again before it
	// becomes a dead letter; GROUP_LOCK_MAX_RETRIES in the environment. Defaults to 3; [NoRetry] means none.
	MaxRetries int `koanf:"max_retries"`
	// MaxUnanswered is how many deliveries of a message, beside those that
	// failed, may reach a handler whose host dies before it reports the outcome.
	// After one more the message becomes a dead letter: a message that kills its
	// host each time must not go on for ever. A delivery does not count when no
	// handler was called for it. Defaults to 10.
	MaxUnanswered int `koanf:"max_unanswered"`

	// AckWait is how long the server waits for a heartbeat or an answer for a
	// message before it delivers the message again. A
	// handler may take longer: the host sends heartbeats while the handler runs.
	// Defaults to 30 s, at least 1 s.
	AckWait time.Duration `koanf:"ack_wait"`
	// Prefetch bounds how many messages of a worker wait in the host, those included
	// that wait for their next attempt. Defaults to 128.
	Prefetch int `koanf:"prefetch"`
	// MaxMessage is the largest message that a handler gets, in bytes; a larger one
	// becomes a dead letter. Defaults to 1 MiB.
	MaxMessage int `koanf:"max_message"`
	// MaxCode is the largest code, in bytes. Defaults to 32 MiB.
	MaxCode int64 `koanf:"max_code"`
	// DrainTimeout is how long a worker that is stopped, moved or deleted may take
	// to finish the message that it handles. Defaults to 30 s.
	DrainTimeout time.Duration `koanf:"drain_timeout"`
	// OutputPatience is how long a host tries to publish an output that the server
	// refuses, or that no stream takes. After that time the output becomes a dead
	// letter. An output that could never be published becomes one at once. While
	// the server is away the host waits without a limit. Defaults to 10 min.
	OutputPatience time.Duration `koanf:"output_patience"`
	// MaxDeadLetters is how many dead letters of a worker are kept. When there are
	// a tenth more, a host removes the oldest, says so in its log and counts them
	// as Tally.Evicted. Defaults to 10,000.
	MaxDeadLetters int `koanf:"max_dead_letters"`
	// Limits bound every worker's calls. A worker may have lower limits of its own.
	Limits engine.Limits `koanf:"limits"`
	// Grants has, by tenant, the variables and secrets that workers may ask for by
	// name. The tenant "*" stands for every tenant and for workers without one; what
	// a tenant's own grant has goes first. Defaults to none.
	Grants map[string]Grant `koanf:"grants"`
	// HTTP bounds the HTTP requests that code sends.
	HTTP outbound.Policy `koanf:"http"`
	// Fetch is the policy for code by URL.
	Fetch fetch.Policy `koanf:"fetch"`

	// MaxHandlers bounds how many messages of all workers are handled at once in
	// child processes. One place of each tenant is its own, and comes on top when there are
	// several. Workers whose messages take long get at most half of the others. Defaults to
	// four times GOMAXPROCS, at least 8.
	MaxHandlers int `koanf:"max_handlers"`
	// MemoryBudget is the memory, in bytes, for the messages of workers: it lowers MaxHandlers to
	// as many messages as it has memory for, by the most that one may take under Limits. While
	// what waits and what the server does not have yet is more than a quarter of it, a worker
	// takes one message at a time. Defaults to a third of the process's limit of memory (that of
	// its control group, or GOMEMLIMIT), or to 256 MiB without one, and at least to what two
	// messages may take.
	MemoryBudget int64 `koanf:"memory_budget"`
	// MaxKills is how many messages may, at their first attempt, end the process of a
	// version's code, by a limit of time or memory or by a crash, until the host puts the
	// version into quarantine. Defaults to 10.
	MaxKills int `koanf:"max_kills"`
	// Isolation says how the child processes run that handle messages.
	Isolation isolate.Config `koanf:"isolation"`

	// Engines run the code: in child processes, unless they are engines of
	// [engine.Trusted] or functions of the process. Required: [New] refuses a Config
	// without an engine.
	Engines *engine.Registry `koanf:"-"`
	// Logger defaults to slog.Default.
	Logger *slog.Logger `koanf:"-"`
	// Fetcher replaces the client for code by URL, for example one with its own TLS
	// configuration.
	Fetcher *fetch.Client `koanf:"-"`

	maxValue int64 // the server's largest message
}

// NoRetry is a value of [Config].MaxRetries. It makes a message a dead letter
// after its first failure.
const NoRetry = -1

var nameForm = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,31}$`)

// WithDefaults returns a copy in which no field is zero.
func (c Config) WithDefaults() Config {
	c.Name = cmp.Or(c.Name, "HOST")
	c.HostID = cmp.Or(c.HostID, identity.New())
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, 10*time.Second)
	c.AcquireTimeout = cmp.Or(c.AcquireTimeout, 5*time.Minute)
	c.RetryBase = cmp.Or(c.RetryBase, 500*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, time.Minute)
	c.MaxRetries = cmp.Or(c.MaxRetries, 3)
	c.MaxUnanswered = cmp.Or(c.MaxUnanswered, 10)
	c.AckWait = cmp.Or(c.AckWait, 30*time.Second)
	c.Prefetch = cmp.Or(c.Prefetch, 128)
	c.MaxMessage = cmp.Or(c.MaxMessage, 1<<20)
	c.MaxCode = cmp.Or(c.MaxCode, 32<<20)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 30*time.Second)
	c.OutputPatience = cmp.Or(c.OutputPatience, 10*time.Minute)
	c.MaxDeadLetters = cmp.Or(c.MaxDeadLetters, 10_000)
	c.MaxHandlers = cmp.Or(c.MaxHandlers, defaultHandlers())
	c.MaxKills = cmp.Or(c.MaxKills, 10)
	c.Limits = c.Limits.WithDefaults()
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// Validate returns an error that names each invalid key and the values that it takes. Call
// it on a Config with its defaults: see [Config.WithDefaults]. What has no key, the engines,
// is the business of [New].
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(nameForm.MatchString(c.Name), "name: %q must be capital letters, digits and _, such as HOST", c.Name)
	isToken := c.HostID == identity.Token(c.HostID) && len(c.HostID) <= 128
	check(isToken, "host_id: %q must be letters, digits, - and _", c.HostID)
	check(c.Replicas == 1 || c.Replicas == 3 || c.Replicas == 5, "replicas: %d must be 1, 3 or 5", c.Replicas)
	check(c.LeaseTTL >= time.Second, "lease_ttl: %v must be 1s or more", c.LeaseTTL)
	check(c.AcquireTimeout > 0, "acquire_timeout: %v must be positive", c.AcquireTimeout)
	check(c.RetryBase > 0 && c.RetryMax >= c.RetryBase,
		"retry_base, retry_max: %v and %v must be positive, and retry_max at least retry_base", c.RetryBase, c.RetryMax)
	check(c.MaxRetries >= NoRetry, "max_retries: %d must be 0 or more, or -1 for none", c.MaxRetries)
	check(c.MaxUnanswered > 0, "max_unanswered: %d must be positive", c.MaxUnanswered)
	check(c.AckWait >= time.Second, "ack_wait: %v must be 1s or more", c.AckWait)
	check(c.Prefetch > 0, "prefetch: %d must be positive", c.Prefetch)
	check(c.MaxMessage > 0 && c.MaxCode > 0, "max_message, max_code: %d and %d must be positive", c.MaxMessage, c.MaxCode)
	check(c.DrainTimeout > 0, "drain_timeout: %v must be positive", c.DrainTimeout)
	check(c.MaxDeadLetters > 0, "max_dead_letters: %d must be positive", c.MaxDeadLetters)
	check(c.OutputPatience > 0, "output_patience: %v must be positive", c.OutputPatience)
	check(c.MaxHandlers > 0, "max_handlers: %d must be positive", c.MaxHandlers)
	least := 2 * c.memoryOfMessage()
	check(c.MemoryBudget == 0 || c.MemoryBudget >= least,
		"memory_budget: %d must be 0, or at least %d, which two messages may take: raise it, or lower limits.output", c.MemoryBudget, least)
	check(c.MaxKills > 0, "max_kills: %d must be positive", c.MaxKills)
	errs = append(errs, c.Limits.Validate(), c.HTTP.Validate(), validateGrants(c.Grants))
	return errors.Join(errs...)
}

// attempts returns how often the host tries a message.
func (c Config) attempts() int {
	return max(c.MaxRetries, 0) + 1
}

// backoff returns how long a failed message waits.
func (c Config) backoff() worker.Backoff {
	return worker.Backoff{Min: c.RetryBase, Max: c.RetryMax}
}

// limits returns the host's limits, lowered by the worker's own.
func (h *Host) limits(r *Record) engine.Limits {
	own, l := r.Limits, h.cfg.Limits
	lower(&l.Time, own.Time)
	lower(&l.Load, own.Load)
	lower(&l.Memory, own.Memory)
	lower(&l.Output, own.Output)
	lower(&l.Outputs, own.Outputs)
	return l
}

func lower[T cmp.Ordered](field *T, v T) {
	var zero T
	if v != zero && v < *field {
		*field = v
	}
}
