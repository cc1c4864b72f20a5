package broker

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Sync says when an embedded server's writes reach the disk.
type Sync string

const (
	// SyncAlways makes a write durable before it is acknowledged: it survives a
	// kill -9 and a loss of power. Each write waits for the disk.
	SyncAlways Sync = "always"
	// SyncInterval leaves writes to the operating system and flushes them every
	// SyncEvery. They survive a kill -9, since the kernel has them. A loss of power
	// loses the acknowledged writes of up to SyncEvery.
	SyncInterval Sync = "interval"
)

// Config says which NATS a process uses. The zero value with a StoreDir is an
// embedded server that opens no port and loses nothing that it acknowledged.
type Config struct {
	// Name is the name of the connection, which servers show.
	// Defaults to the name of the program.
	Name string `koanf:"name"`

	// URL is the URL of an external server, or the URLs of a cluster's servers,
	// separated by commas: "nats://a:4222,nats://b:4222", "tls://…", "ws://…". Empty
	// means an embedded server. With a URL the settings of an embedded server, from
	// StoreDir to MaxStore, are not used: a program may have a StoreDir by default.
	URL string `koanf:"url"`
	// CredentialsFile is a .creds file with the user's JWT and seed.
	CredentialsFile string `koanf:"credentials_file"`
	// NKeyFile holds an nkey seed. It excludes CredentialsFile.
	NKeyFile string `koanf:"nkey_file"`
	// CAFile holds the CA certificates for the server's certificate, in PEM.
	// Defaults to the system's.
	CAFile string `koanf:"ca_file"`
	// CertFile and KeyFile are this client's own certificate and key, in PEM.
	CertFile string `koanf:"cert_file"`
	// KeyFile belongs to CertFile.
	KeyFile string `koanf:"key_file"`
	// TLS is used in place of the three files when it is set.
	TLS *tls.Config `koanf:"-"`
	// ReconnectWait is the pause between two rounds of attempts to connect
	// again. There is no limit to their number. Defaults to 500 ms.
	ReconnectWait time.Duration `koanf:"reconnect_wait"`
	// InboxPrefix begins the subjects on which this client gets answers. Defaults to
	// "_INBOX", which all clients of an account share: a client that may subscribe to it
	// can read the answers to all others. With a prefix of its own, a service needs
	// permission for "PREFIX.>" only.
	InboxPrefix string `koanf:"inbox_prefix"`
	// Domain is the JetStream domain, for a leaf node that uses the hub's JetStream.
	Domain string `koanf:"domain"`

	// StoreDir is where the embedded server keeps its streams. It must be on a
	// disk that outlives the process, and no two processes may share it.
	StoreDir string `koanf:"store_dir"`
	// Listen is the address on which other processes reach the embedded server,
	// such as "127.0.0.1:4222"; port 0 takes a free one. Empty opens no port. An address
	// that other machines can reach needs a ListenTokenFile: a client of the port can
	// drain processes and read and delete all that is stored.
	Listen string `koanf:"listen"`
	// ListenTokenFile has the token that each client of the open port must give, of 20
	// characters or more: their URL is nats://TOKEN@HOST:4222. Without it the port has no
	// authentication, and is for the loopback only.
	ListenTokenFile string `koanf:"listen_token_file"`
	// Sync defaults to SyncAlways.
	Sync Sync `koanf:"sync"`
	// SyncEvery is the time between two flushes with SyncInterval. Defaults to
	// 2 minutes, the server's own default.
	SyncEvery time.Duration `koanf:"sync_every"`
	// MaxStore bounds what the embedded server keeps on disk, in bytes.
	// Defaults to the server's own default: most of the free disk.
	MaxStore int64 `koanf:"max_store"`

	// Buckets are the key-value buckets that exist when Connect returns. Connect
	// creates a missing bucket and compares an existing one with its declaration.
	Buckets []jetstream.KeyValueConfig `koanf:"-"`
	// Streams are streams that Connect treats in the same way.
	Streams []jetstream.StreamConfig `koanf:"-"`

	// Logger gets the changes of the connection and the embedded server's warnings.
	// Defaults to slog.Default.
	Logger *slog.Logger `koanf:"-"`
}

// WithDefaults returns a copy in which each empty field has its default.
func (c Config) WithDefaults() Config {
	c.Name = cmp.Or(c.Name, filepath.Base(os.Args[0]))
	c.Sync = cmp.Or(c.Sync, SyncAlways)
	c.SyncEvery = cmp.Or(c.SyncEvery, 2*time.Minute)
	c.ReconnectWait = cmp.Or(c.ReconnectWait, 500*time.Millisecond)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

// Validate returns an error that names every invalid key. [Connect] also refuses a Config
// without a URL and a StoreDir: a program may set them when it has read the other keys.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.URL == "" {
		onlyExternal := []struct {
			name string
			set  bool
		}{
			{"credentials_file", c.CredentialsFile != ""},
			{"nkey_file", c.NKeyFile != ""},
			{"ca_file", c.CAFile != ""},
			{"cert_file", c.CertFile != ""},
			{"tls", c.TLS != nil},
			{"domain", c.Domain != ""},
		}
		for _, key := range onlyExternal {
			if key.set {
				fault("%s is set and url is not: an embedded server is reached inside the process, without it", key.name)
			}
		}
	}
	host, _, err := net.SplitHostPort(c.Listen)
	isLocal := strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
	switch {
	case c.Listen != "" && err != nil:
		fault("listen is %q, want host:port: %w", c.Listen, err)
	case c.URL == "" && c.Listen != "" && !isLocal && c.ListenTokenFile == "":
		fault("listen is %q, which other machines can reach without credentials: set listen_token_file, or listen on 127.0.0.1", c.Listen)
	}
	if c.InboxPrefix != "" && !validInbox.MatchString(c.InboxPrefix) {
		fault("inbox_prefix is %q, want words of letters, digits, - and _ with dots between them", c.InboxPrefix)
	}
	switch c.Sync {
	case SyncAlways, SyncInterval, "":
	default:
		fault("sync is %q, want %q or %q", c.Sync, SyncAlways, SyncInterval)
	}
	if c.SyncEvery < 0 {
		fault("sync_every is %v, want 0 for the default, or more", c.SyncEvery)
	}
	if c.ReconnectWait < 0 {
		fault("reconnect_wait is %v, want 0 for the default, or more", c.ReconnectWait)
	}
	if c.MaxStore < 0 {
		fault("max_store is %d, want a number of bytes, or 0 for the server's own limit", c.MaxStore)
	}
	if c.CredentialsFile != "" && c.NKeyFile != "" {
		fault("credentials_file and nkey_file are both set: want one of them")
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("cert_file and key_file belong together: want both or neither")
	}
	if c.TLS != nil && (c.CAFile != "" || c.CertFile != "") {
		fault("tls is set and so is ca_file or cert_file: want either tls or the files")
	}
	return errors.Join(faults...)
}

var errNoServer = errors.New("store_dir is empty: an embedded server needs a folder for its streams; or set url to use an external one")

var validInbox = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// options returns the options of the connection to an external server.
func (c Config) options() ([]nats.Option, error) {
	var opts []nats.Option
	if c.CredentialsFile != "" {
		if _, err := os.Stat(c.CredentialsFile); err != nil {
			return nil, fmt.Errorf("read credentials_file: %w", err)
		}
		opts = append(opts, nats.UserCredentials(c.CredentialsFile))
	}
	if c.NKeyFile != "" {
		opt, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("read nkey_file %s: %w", c.NKeyFile, err)
		}
		opts = append(opts, opt)
	}
	if c.TLS != nil {
		opts = append(opts, nats.Secure(c.TLS))
	}
	if c.CAFile != "" {
		opts = append(opts, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		opts = append(opts, nats.ClientCert(c.CertFile, c.KeyFile))
	}
	return opts, nil
}
