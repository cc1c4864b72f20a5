// Package config loads what a service can be told into the service's own struct,
// in which [lifecycle.Config] is a section:
//
//	type Config struct {
//		Addr      string
//		DSN       string           `koanf:"dsn" secret:"true"`
//		Poll      time.Duration    `usage:"look for work this often"`
//		Lifecycle lifecycle.Config
//	}
//
//	func (Config) WithDefaults() Config { return Config{Addr: ":8080", Poll: time.Second} }
//
//	cfg, err := config.Load[Config]("service.yaml")
//
// # Sources
//
// Four sources give values, and of two that disagree the later one wins, which
// the log says at debug level and [Live.Settings] tells:
//
//  1. the defaults: what T's method WithDefaults returns, zeros without one;
//  2. the file, YAML, JSON or TOML by its extension. The flag -config and its
//     variable name another than the program does, or none when empty;
//  3. the environment;
//  4. the flags, of os.Args.
//
// # Names
//
// A key is the name of a field in small letters with underscores, or what its
// tag koanf:"…" says; koanf:"-" keeps a field out. The levels of a struct are
// joined with dots. With Load[Config]("service.yaml"):
//
//	file         lifecycle: {drain_interval: 10s}
//	environment  SERVICE_LIFECYCLE_DRAIN_INTERVAL=10s
//	flag         -lifecycle.drain-interval=10s
//
// The environment's prefix is the file's name in the program, whatever file is
// read then; see [WithEnvPrefix]. In the environment and in flags a list is
// written a,b,c and a map k=v,l=w; lists of structs are for files. Lists and
// maps replace what an earlier source gave.
//
// A variable with the prefix that is no key is a fault when it looks like one
// that is misspelt, or is below LIFECYCLE. What Kubernetes sets for a Service of
// that name (SERVICE_PORT=tcp://… and so on) is passed over, and any other is
// named in the log as a warning, because the prefix is not this package's alone.
//
// # Strictness
//
// Everything that is wrong is an error, all of it at once, each a [*Fault] that
// names the source with its line, the key, the value and what would be right:
// a key that does not exist, with the one that was probably meant; a key that is
// there twice; text where a number belongs and the other way round; a duration
// without a unit; a number that its field cannot hold; a key without a value; a
// file that is empty, not text, larger than [MaxFileSize], or not all there.
// Then the sections' and T's own Validate methods are asked; what
// lifecycle.Config says of a budget that does not add up is told with its keys
// and where each of their values comes from.
//
// Zero and off are not the same in Go, where the zero of a duration in
// lifecycle.Config gives its default. Here a duration below lifecycle that is
// given as 0 or "off" is [lifecycle.Off], and a key that is not given has its
// default.
//
// # Secrets
//
// A field of type [lifecycle.Secret], or with the tag secret:"true", is shown as
// [secret] in faults, logs and reports, and so are the fields of a section with
// that tag, the items of a list, and what was given in place of these. A Secret
// is hidden wherever it goes (fmt, slog, encoding/json).
//
// # Changes
//
// [Open] is Load for a configuration that may change: see [Live]. A file that is
// read while it is written may be half there. Mostly that is an error, and changes
// nothing; a half that is a configuration of its own is told by its being shorter,
// and gets more time ([Live.Watch]). At a start there is nothing to compare with:
// write beside the file, and rename.
// docs/config.md lists the keys of lifecycle and says which of them a running
// App takes on; docs/config.schema.json is their JSON Schema, and [Schema]
// makes that of a whole service, for editors.
package config
