package cli

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

	asOf   atomic.Pointer[time.Time] // from when the last answer is; nil when it is not known
	config client.Config
}

// Open prepares the client of the server that the flags of the command name, with the login
// at it when there are no other credentials. It does not connect.
func Open(cmd *cobra.Command) (*Server, error) {
	s, err := openWithoutLogin(cmd)
	if err != nil || s.config.TokenFile != "" || s.config.CertFile != "" {
		return s, err
	}
	login, err := ReadLogin(s.URL)
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
	if err := chooseContext(flags); err != nil {
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
		AsOf:      func(at time.Time) { s.asOf.Store(&at) },
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
		if err := checkToken(s.config.TokenFile); err != nil {
			return nil, err
		}
	}
	s.Client, err = client.New(s.config)
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
	wrong := func(why string) (*url.URL, error) {
		return nil, fmt.Errorf("--server is %q: %s; want a URL such as %s", text, why, defaultServer)
	}
	full := text
	if !strings.Contains(text, "://") {
		full = "https://" + text
		if u, err := url.Parse(full); err == nil && IsLoopback(u.Hostname()) {
			full = "http://" + text
		}
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return wrong("it cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return wrong("it is neither http nor https")
	case u.Hostname() == "":
		return wrong("it has no host")
	case u.User != nil:
		text = u.Redacted()
		return wrong("it has a user's name in it: credentials belong in --token-file")
	case u.RawQuery != "" || u.Fragment != "":
		return wrong("it has more than an address and a path")
	}
	return u, nil
}

// IsSafe reports whether an address is of https, or of this machine.
func IsSafe(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http" && IsLoopback(u.Hostname()))
}

// IsLoopback reports whether a host is this machine.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// checkToken checks a token file before the first call.
func checkToken(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--token-file: %w", err)
	}
	found := strings.Fields(string(text))
	if len(found) != 1 {
		return fmt.Errorf("--token-file: %s has %d words: want only the token", file, len(found))
	}
	if strings.ContainsFunc(found[0], func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("--token-file: the token in %s has characters that are not valid in a token", file)
	}
	return nil
}

// staleAfter is how old an answer may be without a word about it.
const staleAfter = 5 * time.Second

// staleNote says that the last answer is old, "" when it is not.
func (s *Server) staleNote() string {
	at := s.asOf.Load()
	if at == nil || time.Since(*at) < staleAfter {
		return ""
	}
	return fmt.Sprintf("this is as of %s, %v ago: a service behind the server is away; lifecyclectl doctor names it",
		at.UTC().Format(time.RFC3339), time.Since(*at).Round(time.Second))
}
