// Package config loads the configuration of a service into the service's own struct,
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
// Four sources give values. When two give the same key the later one wins; the log
// says so at debug level, and [Live.Settings] returns it:
//
//  1. the defaults: the result of T's method WithDefaults, zeros without one;
//  2. the file, YAML, JSON or TOML by its extension, or several, "base.yaml:site.yaml",
//     of which a later one wins. The flag -config and its variable name others, or none
//     when empty;
//  3. the environment;
//  4. the flags, of os.Args.
//
// # Names
//
// A key is the name of a field in small letters with underscores, or the name in its
// tag koanf:"…"; koanf:"-" excludes a field. Dots join the levels of a struct. With
// Load[Config]("service.yaml"):
//
//	file         lifecycle: {drain_interval: 10s}
//	environment  SERVICE_LIFECYCLE_DRAIN_INTERVAL=10s
//	flag         -lifecycle.drain-interval=10s
//
// The prefix of the environment is the name of the file that the program passes to
// Load, even when another file is read; see [WithEnvPrefix]. In the environment and
// in flags a list is written a,b,c and a map k=v,l=w; only files have lists of
// structs. Lists and maps replace the value of an earlier source.
//
// A value is text, a number, true or false, a [time.Duration], a [url.URL], or a type that
// reads itself from text ([encoding.TextUnmarshaler]), such as netip.Addr and slog.Level.
//
// A value in the environment or in a flag has no white space before or after it; the
// items of a list and a map may. A number there has no leading zero.
//
// A variable with the prefix that is not a key is a fault when it looks like a
// misspelt key, or is below LIFECYCLE. The variables that Kubernetes sets for a
// Service of that name (SERVICE_PORT=tcp://… and so on) are ignored. For any other the
// log has a warning, because other programs may use the prefix too.
//
// A variable that would set a key of lifecycle, but has another prefix, is ignored with a
// warning: it often comes from a manifest that was copied.
//
// # Strictness
//
// Load reports every fault at once. Each is a [*Fault] that names the source with its
// line, the key, the value and what would be right. Faults are: an unknown key, with
// the key that was probably meant; a key that occurs twice; text in place of a number
// or a number in place of text; a duration without a unit; a number that its field
// cannot hold; a number with a leading zero, which is octal for some parsers and decimal
// for others; a key without a value; a file that is empty, not text, larger than
// [MaxFileSize], or truncated. At the top of a file, Load ignores keys that begin with
// x-: they are for YAML anchors.
//
// Then Load calls the Validate methods of the sections and of T. A section whose type has a
// method WithDefaults is checked with these defaults, as the part that gets the section fills
// them in; Load itself leaves its missing keys zero. When lifecycle.Config refuses a budget,
// the fault names its keys and the source of each value. What these methods find is reported
// beside the other faults, unless a source could not be read. They see a key that was refused
// with its earlier value, so Load says nothing about a budget of a lifecycle.Config with such a key.
//
// In lifecycle.Config the zero of a duration means its default, so zero and off are
// different values in Go. Here 0 or "off" for a duration below lifecycle, or for a duration
// with the tag off:"true", means [lifecycle.Off], and a missing key means its default.
//
// # All parts in one file
//
// procpool.Config, and broker.Config, presence.Config, host.Config and operator.Config of the
// module fleet, are sections like lifecycle.Config:
//
//	type Config struct {
//		Lifecycle lifecycle.Config
//		Pool      procpool.Config // pool: {max_workers: 4, drain_timeout: 10s}
//		Broker    broker.Config   // broker: {url: "nats://nats:4222"}
//	}
//
// What has no key, such as the command of a pool, the program sets before it makes the part.
//
// # A program that has a library already
//
// [Define] adds the flags to a set that the program parses itself, for commands and
// flags of its own. [WithFlags] takes the flags of another library. [From], [FromMap] and
// [FromKoanf] take settings that the program has read, in place of all sources above. The
// modules cobraconfig and viperconfig below this folder do so for those libraries. All are as
// strict, and docs/guides/config.md has an example of each.
//
// # Secrets
//
// A field of type [lifecycle.Secret], or with the tag secret:"true", appears as
// [secret] in faults, logs and reports. So do the fields of a section with that tag,
// the items of a list, and any value that was given in their place. A Secret is hidden
// everywhere (fmt, slog, encoding/json). Faults, logs and reports do not show the password or
// the token in a URL, nor in a text that contains one.
//
// # Changes
//
// [Open] is Load for a configuration that may change: see [Live]. A file may be read
// while it is being written. Usually the first half of a file is an error, and changes
// nothing. A half that is a valid configuration is shorter than the old file, so
// [Live.Watch] waits longer before it reads a shorter file. At the start there is no
// old file to compare with: write a new file and rename it over the old one.
// docs/reference/config.md lists the keys of lifecycle, and which of them a running App takes
// over. docs/reference/config.schema.json is their JSON Schema. [Schema] makes the JSON
// Schema of a whole service, for editors.
package config
