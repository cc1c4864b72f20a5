package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
)

const defaultServer = "http://127.0.0.1:8090"

// Variable returns the environment variable of a flag of a connection.
func Variable(flag string) string {
	return "LIFECYCLECTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// ConnectionFlags returns the flags of every command that asks an operator server. Each has
// an environment variable.
func ConnectionFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("connection", pflag.ContinueOnError)
	f.String("context", "", "`name` of a context of the configuration file; see contexts")
	f.String("server", defaultServer, "`URL` of the operator server")
	f.String("token-file", "", "`file` with only the bearer token")
	f.String("ca-file", "", "`file` with the certificates (PEM) that may sign the server's; default: the system's")
	f.String("cert-file", "", "`file` with the client's certificate (PEM)")
	f.String("key-file", "", "`file` with the client's key (PEM)")
	f.Bool("plaintext-token", false, "send the token without TLS to another machine")
	f.Duration("timeout", 30*time.Second, "the maximum `time` to connect, and until an answer begins")
	return f
}

// Server is an operator server.
type Server struct {
	*client.Client
	URL string

	asOf   atomic.Pointer[asOf] // of the last answer; nil when it is not known
	config client.Config
}

// Open prepares the client of the server that the flags of the command name, with the login
// at it when there are no other credentials. It does not connect.
func Open(cmd *cobra.Command) (*Server, error) {
	s, err := openWithoutLogin(cmd)
	if err != nil || s.config.TokenFile != "" || s.config.CertFile != "" {
		return s, err
	}
	login, err := ReadLogin(cmd.Context(), s.URL)
	if err != nil || login == nil || !IsSafe(s.URL) && !s.config.Insecure {
		return s, err
	}
	return s.As(login)
}

// openWithoutLogin is Open for the commands that sign in and out.
func openWithoutLogin(cmd *cobra.Command) (*Server, error) {
	flags := cmd.Flags()
	if err := ReadVariables(flags, ConnectionFlags()); err != nil {
		return nil, err
	}
	if err := chooseContext(cmd.Context(), flags); err != nil {
		return nil, err
	}
	text := func(name string) string { return flags.Lookup(name).Value.String() }
	base, err := parseServer(text("server"))
	if err != nil {
		return nil, err
	}
	s := &Server{URL: strings.TrimSuffix(base.String(), "/")}
	s.config = client.Config{
		Server:    s.URL,
		TokenFile: text("token-file"),
		CAFile:    text("ca-file"),
		CertFile:  text("cert-file"),
		KeyFile:   text("key-file"),
		AsOf:      func(at time.Time, away []string) { s.asOf.Store(&asOf{at, away}) },
	}
	s.config.Insecure, _ = flags.GetBool("plaintext-token")
	s.config.Timeout, _ = flags.GetDuration("timeout")
	if s.config.Timeout <= 0 {
		return nil, fmt.Errorf("--timeout is %v: want more than 0", s.config.Timeout)
	}
	if s.config.TokenFile != "" {
		if !IsSafe(s.URL) && !s.config.Insecure {
			return nil, fmt.Errorf("the token would go to %s unencrypted: want https, or --plaintext-token", base.Host)
		}
		if _, err := s.token(cmd.Context()); err != nil { // before the first call
			return nil, err
		}
		s.config.TokenSource = s.token
	}
	s.Client, err = Until(cmd.Context(), func() (*client.Client, error) { return client.New(s.config) })
	return s, err
}

// As returns the server as the owner of a login sees it.
func (s *Server) As(l *Login) (*Server, error) {
	s.Close()
	var err error
	s.config.TokenSource = l.Token
	s.Client, err = client.New(s.config)
	return s, err
}

// ReadVariables sets each flag that was not given and whose variable is set.
func ReadVariables(flags, those *pflag.FlagSet) (fault error) {
	those.VisitAll(func(f *pflag.Flag) {
		value := os.Getenv(Variable(f.Name))
		if value == "" || flags.Changed(f.Name) || fault != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			fault = fmt.Errorf("%s is %q: %w", Variable(f.Name), value, err)
		}
	})
	return fault
}

// parseServer parses a URL. Without a scheme it is http on this machine and
// https elsewhere.
func parseServer(text string) (*url.URL, error) {
	full := text
	if !strings.Contains(text, "://") {
		full = "https://" + text
		if u, err := url.Parse(full); err == nil && client.IsLoopback(u.Hostname()) {
			full = "http://" + text
		}
	}
	u, err := url.Parse(full)
	isAddress := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
	if !isAddress || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--server is not an address and a path: want a URL such as %s; "+
			"credentials belong in --token-file", defaultServer)
	}
	return u, nil
}

// IsSafe reports whether an address is of https, or of this machine.
func IsSafe(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http" && client.IsLoopback(u.Hostname()))
}

// token reads the token file, as each call does.
func (s *Server) token(ctx context.Context) (string, error) {
	text, err := ReadFile(ctx, s.config.TokenFile, nil)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	found := strings.Fields(string(text))
	if len(found) != 1 {
		return "", fmt.Errorf("--token-file: %s has %d words: want only the token", s.config.TokenFile, len(found))
	}
	return found[0], nil
}

// staleAfter is how old an answer may be without a word about it.
const staleAfter = 5 * time.Second

// staleNote says that the last answer is old, "" when it is not.
func (s *Server) staleNote() string {
	last := s.asOf.Load()
	if last == nil || time.Since(last.at) < staleAfter {
		return ""
	}
	return fmt.Sprintf("%s is away: this is as of %s, %v ago",
		cmp.Or(strings.Join(last.away, ", "), "a service behind the server"), last.at.UTC().Format(time.RFC3339), time.Since(last.at).Round(time.Second))
}

// asOf says from when an answer is, and which services behind the server are away.
type asOf struct {
	at   time.Time
	away []string
}

// Contexts is the configuration file: servers by name, and the one that commands ask.
type Contexts struct {
	Path     string                       `yaml:"-"`
	Current  string                       `yaml:"current,omitempty"`
	Contexts map[string]map[string]string `yaml:"contexts"` // the flags of a connection, by name
}

// configFile returns the path of the configuration file.
func configFile() (string, error) {
	if path := os.Getenv("LIFECYCLECTL_CONFIG"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where is the configuration file? set LIFECYCLECTL_CONFIG: %w", err)
	}
	return filepath.Join(dir, "lifecyclectl", "config.yaml"), nil
}

// ReadContexts reads the configuration file. A missing file has no contexts.
func ReadContexts(ctx context.Context) (c Contexts, err error) {
	if c.Path, err = configFile(); err != nil {
		return c, err
	}
	text, err := ReadFile(ctx, c.Path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration file: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("configuration file %s: %w", c.Path, err)
	}
	known := ConnectionFlags()
	for name, flags := range c.Contexts {
		for flag := range flags {
			if known.Lookup(flag) == nil || flag == "context" {
				return c, fmt.Errorf("configuration file %s: the context %s has %q, which is not a flag of a connection", c.Path, name, flag)
			}
		}
	}
	return c, nil
}

// chooseContext sets the flags of a connection that neither the command line nor the
// environment sets, from the context.
func chooseContext(ctx context.Context, given *pflag.FlagSet) error {
	c, err := ReadContexts(ctx)
	name, _ := given.GetString("context")
	if c.Path == "" && name == "" {
		return nil // a user without a folder of configurations has no contexts
	}
	if err != nil {
		return err
	}
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return nil
	}
	flags, ok := c.Contexts[name]
	if !ok {
		return fmt.Errorf("there is no context %q in %s; lifecyclectl contexts list has them", name, c.Path)
	}
	server := given.Lookup("server")
	isOtherServer := flags["server"] != "" && server.Changed && !isSameServer(server.Value.String(), flags["server"])
	for flag, value := range flags {
		if given.Changed(flag) || isOtherServer && slices.Contains(credentialFlags, flag) {
			continue
		}
		if strings.HasSuffix(flag, "-file") && !filepath.IsAbs(value) { // relative to the file that names it
			value = filepath.Join(filepath.Dir(c.Path), value)
		}
		if err := given.Set(flag, value); err != nil {
			return fmt.Errorf("configuration file %s: the context %s has %s %q: %w", c.Path, name, flag, value, err)
		}
	}
	return nil
}

// credentialFlags are the flags of a context that count for its own server only.
var credentialFlags = []string{"token-file", "cert-file", "key-file", "plaintext-token"}

func isSameServer(a, b string) bool {
	one, err := parseServer(a)
	if err != nil {
		return false
	}
	other, err := parseServer(b)
	return err == nil && one.Scheme == other.Scheme && strings.EqualFold(one.Host, other.Host)
}
