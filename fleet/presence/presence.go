package presence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
)

// Config names a fleet. All its processes and operators have the same Bucket,
// Prefix and TTL.
type Config struct {
	// Bucket is the key-value bucket, and the name of the fleet: Prefix and Journal follow from
	// it, so two fleets in one NATS need nothing else. Defaults to "FLEET".
	Bucket string `koanf:"bucket"`

	// Prefix begins the subjects of commands and events. Defaults to "lifecycle." and the
	// bucket's name in small letters: "lifecycle.fleet".
	Prefix string `koanf:"prefix"`

	// TTL is how long a process counts as alive after its last announcement.
	// Defaults to 15 s; at least 1 s.
	TTL time.Duration `koanf:"ttl"`

	// Every is the time between announcements while nothing changes in the process.
	// Defaults to TTL/3, which is also the maximum.
	Every time.Duration `koanf:"every"`

	// ID of this process, unique among the processes of its service. Defaults to the
	// host's name, a dash and a random part. In Kubernetes the host's name is the pod's.
	ID string `koanf:"id"`

	// OperatorsFile has the public keys of the operators that this process obeys, as PEM:
	// those of more than one while a key is replaced. The process reads it for each
	// command. Without it the process obeys any key while its connection to NATS ends in
	// this process or on this machine, and otherwise it refuses every command.
	OperatorsFile string `koanf:"operators_file"`

	// KeyFile has the private key with which a [Fleet] signs its commands: Ed25519,
	// PKCS #8 in PEM, as "openssl genpkey -algorithm ed25519" writes it. [Open] reads it.
	// Without it each Fleet makes a key of its own, which only processes without an
	// OperatorsFile obey.
	KeyFile string `koanf:"key_file"`

	// Ended asks the platform how a process ended that reported no end, for
	// [Fleet.Attend]: kube.Client.Ended does on Kubernetes. Without it, and when it returns
	// an error, the journal has what the last announcement suggests. It gets two seconds. It is called for up to
	// 16 processes at once.
	Ended func(ctx context.Context, p Process) (End, error) `koanf:"-"`

	// Version of the program, for operators to see.
	Version string `koanf:"version"`

	// Lines has the last lines of the process's log, which operators may read. Without it
	// they cannot.
	Lines *Lines `koanf:"-"`

	// Settings returns the process's configuration with the source of each value, which
	// operators may read: the method All of a config.Live. It is called for each question,
	// on another goroutine, and has a second. Values that are "[secret]" or whose keys name
	// a secret never leave the process. Without it operators cannot read the configuration.
	Settings func() []Setting `koanf:"-"`

	// Journal is the name of the JetStream stream that keeps the events of the fleet.
	// Defaults to the bucket's name and "_JOURNAL": "FLEET_JOURNAL". JournalOff keeps none. A
	// stream of that name that has the events of another Prefix is an error.
	Journal string `koanf:"journal"`

	// JournalAge is how long an event is kept. Defaults to 7 days. JournalBytes is how
	// large the stream may become; defaults to 1 GiB. Then the oldest events go. Both
	// take effect when the stream is created.
	JournalAge   time.Duration `koanf:"journal_age"`
	JournalBytes int64         `koanf:"journal_bytes"`

	// CommandTimeout is how long a [Fleet] waits for a process to answer.
	// Defaults to 5 s.
	CommandTimeout time.Duration `koanf:"command_timeout"`

	// Logger defaults to slog.Default().
	Logger *slog.Logger `koanf:"-"`
}

// JournalOff is the Journal of a fleet that keeps none.
const JournalOff = "off"

const defaultTTL = 15 * time.Second

func (c Config) withDefaults() (Config, error) {
	c.JournalAge = cmp.Or(c.JournalAge, 7*24*time.Hour)
	c.JournalBytes = cmp.Or(c.JournalBytes, 1<<30)
	c.Bucket = cmp.Or(c.Bucket, "FLEET")
	c.Prefix = cmp.Or(c.Prefix, "lifecycle."+strings.ToLower(c.Bucket))
	c.Journal = cmp.Or(c.Journal, c.Bucket+"_JOURNAL")
	c.TTL = cmp.Or(c.TTL, defaultTTL)
	c.Every = cmp.Or(c.Every, c.TTL/3)
	c.CommandTimeout = cmp.Or(c.CommandTimeout, 5*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("presence: %w", err)
	}
	return c, nil
}

// Validate returns an error that names an invalid field. A field that is not set is valid.
func (c Config) Validate() error {
	ttl := cmp.Or(c.TTL, defaultTTL)
	switch {
	case ttl < time.Second:
		return fmt.Errorf("TTL is %v: want 1s or more", c.TTL)
	case c.Every < 0 || c.Every > ttl/3:
		return fmt.Errorf("Every is %v with a TTL of %v: "+
			"want at most a third of it, so that one lost announcement is not a lost process", c.Every, ttl)
	case c.CommandTimeout < 0:
		return fmt.Errorf("CommandTimeout is %v: want more than 0", c.CommandTimeout)
	case c.Bucket != "" && !validBucket.MatchString(c.Bucket):
		return fmt.Errorf("Bucket is %q: want letters, digits, - and _", c.Bucket)
	case c.Journal != "" && !validBucket.MatchString(c.Journal):
		return fmt.Errorf("Journal is %q: want letters, digits, - and _", c.Journal)
	case c.JournalAge != 0 && c.JournalAge < time.Minute:
		return fmt.Errorf("JournalAge is %v: want a minute or more", c.JournalAge)
	case c.JournalBytes != 0 && c.JournalBytes < 1<<20:
		return fmt.Errorf("JournalBytes is %d: want 1 MiB or more", c.JournalBytes)
	case c.Prefix != "" && !validSubject.MatchString(c.Prefix):
		return fmt.Errorf("Prefix is %q: want words of letters, digits, - and _ with dots between them", c.Prefix)
	case c.ID != "" && !validID.MatchString(c.ID):
		return fmt.Errorf("ID is %q: want at most 200 letters, digits, - and _", c.ID)
	}
	return nil
}

var (
	validBucket  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)
	validSubject = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	validID      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)
)

// maxAnnouncement is the largest announcement, in bytes. A process with a larger tree
// of units leaves out the deepest ones.
const maxAnnouncement = 512 << 10

var errTTL = errors.New("use the same TTL in all of the fleet")

// bucket opens the fleet's bucket, and creates it when it is missing.
func bucket(ctx context.Context, js jetstream.JetStream, c Config) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, c.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:       c.Bucket,
			TTL:          c.TTL,
			History:      1,
			Storage:      jetstream.MemoryStorage,
			MaxValueSize: maxAnnouncement,
			Description:  "processes of the fleet; each entry expires unless it is renewed",
		})
		switch {
		case errors.Is(err, jetstream.ErrBucketExists): // another process was faster
			kv, err = js.KeyValue(ctx, c.Bucket)
		case errors.Is(err, context.DeadlineExceeded): // the server does not answer what the user may not ask
			err = fmt.Errorf("it does not exist yet, and this NATS user may not create it: the operators' server does (%w)", err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("presence: bucket %s: %w", c.Bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("presence: bucket %s: %w", c.Bucket, err)
	}
	if ttl := status.TTL(); ttl != c.TTL {
		return nil, fmt.Errorf("presence: bucket %s keeps entries for %v and this process expects %v: %w",
			c.Bucket, ttl, c.TTL, errTTL)
	}
	return kv, nil
}

// Process is the last announcement of one process.
type Process struct {
	// ID is the service and the process's own id, with a dot between them.
	ID        string    `json:"id"`
	Service   string    `json:"service"`
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	Version   string    `json:"version,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	// Suspended is the reason for which readiness is suspended, "" when it is not.
	// The fleet, /admin/suspend or the program may have suspended it.
	Suspended string `json:"suspended,omitempty"`
	// Ready says whether [lifecycle.App.Ready] returned nil.
	Ready bool `json:"ready"`
	// Status is as [lifecycle.App.Status] returns it, but its Report has no units that run.
	Status lifecycle.Status `json:"status"`
	// Truncated says that units were left out.
	Truncated bool `json:"truncated,omitempty"`
	// Memory is what the process's container uses, as the kubelet counts it; without a limit
	// what the process itself uses; zero when it is not known.
	Memory Memory `json:"memory,omitzero"`
	// Usage is what it uses besides.
	Usage Usage `json:"usage,omitzero"`
	// Restarts are the latest restarts of units, newest first, at most 20.
	Restarts []Restart `json:"restarts,omitempty"`
	// Number counts the announcements of this process, from 1, and AnnouncedAt is the
	// time of this one by the process's clock.
	Number      uint64    `json:"-"`
	AnnouncedAt time.Time `json:"-"`
	// SeenAt is when the server stored the announcement.
	SeenAt time.Time `json:"-"`
	// Suspect says why the entry, or a recent one of the same id, was not written by the
	// process, "" when all is well. The other fields are then from the process's own last
	// announcement, and empty when that is not known.
	Suspect string `json:"-"`
}

// End is how a process ended, by what its platform knows.
type End struct {
	Reason     string // the platform's word, such as "OOMKilled", "Error", "Evicted"
	ExitStatus int    // 128 and a number when a signal ended it; -1 when it is not known
	Message    string // last words
	Restarts   int    // how often the platform has started the program again in this place
}

// Memory is a number of bytes and its limit; a limit of 0 is none.
type Memory struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

// text returns the memory for people.
func (m Memory) text() string {
	if m.Limit <= 0 {
		return fmt.Sprintf("%d MiB", m.Used>>20)
	}
	return fmt.Sprintf("%d of %d MiB", m.Used>>20, m.Limit>>20)
}

// Restart is one restart of a unit.
type Restart struct {
	Unit  string    `json:"unit"` // with the names above it: "pool/w1"
	At    time.Time `json:"at"`
	Cause string    `json:"cause,omitempty"`
	Who   string    `json:"who,omitempty"` // the operator who asked for it, "" when the unit had failed
}
