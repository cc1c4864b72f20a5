package host

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// ErrNotGranted is wrapped when a worker asks for a variable or a secret that the
// host's configuration does not grant to its tenant.
var ErrNotGranted = errors.New("not granted")

// Grant has what the workers of a tenant may ask for by name.
type Grant struct {
	// Env has the values of variables.
	Env map[string]string `koanf:"env"`
	// Secrets says where the host reads each secret: env:NAME is a variable of the
	// host's own environment, and file:PATH a file, without the newline at its end.
	// The host reads a secret when it loads a worker that asks for it.
	Secrets map[string]string `koanf:"secrets"`
	// Keys are the public keys, by a name of your choice, that may sign the tenant's
	// code: see package codesign. A tenant that has keys, or for which "*" has keys, runs
	// only code that one of them has signed.
	Keys map[string]string `koanf:"keys"`
	// HTTP says which requests the tenant's code may send.
	HTTP HTTPGrant `koanf:"http"`
}

// ErrNotSigned is wrapped when a tenant's code must be signed and has no signature of one
// of the keys.
var ErrNotSigned = errors.New("the code is not signed")

// anyTenant is the tenant in Config.Grants that stands for every tenant.
const anyTenant = "*"

// validateGrants returns what is wrong with grants. It reads no secret.
func validateGrants(grants map[string]Grant) error {
	var errs []error
	for _, tenant := range slices.Sorted(maps.Keys(grants)) {
		g := grants[tenant]
		if tenant != anyTenant {
			errs = append(errs, checkID("grants: tenant", tenant))
		}
		for _, name := range slices.Sorted(maps.Keys(g.Env)) {
			errs = append(errs, inGrant(tenant, "env", engine.CheckName(name)))
			if !isText(g.Env[name]) {
				errs = append(errs, fmt.Errorf("grants.%s.env.%s: it is not text in UTF-8", tenant, name))
			}
		}
		errs = append(errs, inGrant(tenant, "http", g.HTTP.validate()))
		for _, name := range slices.Sorted(maps.Keys(g.Keys)) {
			_, err := codesign.ParsePublic(g.Keys[name])
			errs = append(errs, inGrant(tenant, "keys."+name, err))
		}
		for _, name := range slices.Sorted(maps.Keys(g.Secrets)) {
			errs = append(errs, inGrant(tenant, "secrets", engine.CheckName(name)))
			if kind, at, ok := strings.Cut(g.Secrets[name], ":"); !ok || at == "" || kind != "env" && kind != "file" {
				// The text may be the secret itself, so the error does not have it.
				errs = append(errs, fmt.Errorf("grants.%s.secrets.%s: want env:NAME or file:PATH, and not the secret itself", tenant, name))
			}
		}
	}
	return errors.Join(errs...)
}

func inGrant(tenant, what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("grants.%s.%s: %w", tenant, what, err)
}

// means are what a worker's code gets beside its messages and its state.
type means struct {
	env  map[string]string
	veil *veil // hides the secrets
	web  *web
}

// granted returns the means of a worker. The error wraps [ErrNotGranted] and has no value.
func (h *Host) granted(r *Record) (*means, error) {
	env := make(map[string]string, len(r.Env)+len(r.Secrets))
	secrets := make(map[string]string, len(r.Secrets))
	var errs []error
	for _, name := range r.Env {
		v, ok := find(h.cfg.Grants, r.Tenant, name, func(g Grant) map[string]string { return g.Env })
		if !ok {
			errs = append(errs, refusal(r, "variable", name, h.names(r, func(g Grant) map[string]string { return g.Env })))
			continue
		}
		env[name] = v
	}
	inHeaders := make(map[string]string)
	for _, name := range slices.Concat(r.Secrets, r.HTTP.Secrets) {
		source, ok := find(h.cfg.Grants, r.Tenant, name, func(g Grant) map[string]string { return g.Secrets })
		if !ok {
			errs = append(errs, refusal(r, "secret", name, h.names(r, func(g Grant) map[string]string { return g.Secrets })))
			continue
		}
		v, err := readSecret(source)
		if err != nil {
			errs = append(errs, fmt.Errorf("secret %s: %w", name, err))
			continue
		}
		if secrets[name] = v; slices.Contains(r.Secrets, name) {
			env[name] = v
		}
		if slices.Contains(r.HTTP.Secrets, name) {
			inHeaders[name] = v
		}
	}
	web, err := h.webOf(r, inHeaders)
	if err := errors.Join(append(errs, err)...); err != nil {
		return &means{}, err
	}
	return &means{env, newVeil(secrets), web}, nil
}

// signed returns nil when a worker may run code: one of its tenant's keys has signed the
// code, or there are no keys. The error wraps [ErrNotSigned].
func (h *Host) signed(r *Record, code []byte) error {
	var keys []ed25519.PublicKey
	var names []string
	for _, tenant := range slices.Compact([]string{anyTenant, cmp.Or(r.Tenant, anyTenant)}) {
		for _, name := range slices.Sorted(maps.Keys(h.cfg.Grants[tenant].Keys)) {
			key, err := codesign.ParsePublic(h.cfg.Grants[tenant].Keys[name])
			if err != nil {
				return fmt.Errorf("%w: the key %s: %w", ErrNotSigned, name, err) // Validate has refused it
			}
			keys, names = append(keys, key), append(names, name)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	of := codesign.Code{Tenant: r.Tenant, Worker: r.ID, MIMEType: r.MIMEType, Digest: fetch.Digest(code)}
	switch {
	case len(r.Signature) == 0:
		return fmt.Errorf("%w: the host's configuration wants a signature of %s", ErrNotSigned, strings.Join(names, " or "))
	case !codesign.Verify(keys, of, r.Signature):
		return fmt.Errorf("%w by %s: its signature is for another code, kind, worker or tenant, or of another key", ErrNotSigned, strings.Join(names, " or "))
	}
	return nil
}

// find looks a name up in the grant of a tenant, and then in that of all tenants.
func find(grants map[string]Grant, tenant, name string, of func(Grant) map[string]string) (string, bool) {
	if v, ok := of(grants[tenant])[name]; ok && tenant != "" {
		return v, true
	}
	v, ok := of(grants[anyTenant])[name]
	return v, ok
}

// names returns the names that a worker may ask for.
func (h *Host) names(r *Record, of func(Grant) map[string]string) []string {
	all := slices.Collect(maps.Keys(of(h.cfg.Grants[anyTenant])))
	if r.Tenant != "" {
		all = slices.AppendSeq(all, maps.Keys(of(h.cfg.Grants[r.Tenant])))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func refusal(r *Record, what, name string, may []string) error {
	who := "workers without a tenant"
	if r.Tenant != "" {
		who = "the tenant " + r.Tenant
	}
	offer := "it has none"
	if len(may) > 0 {
		offer = "it has " + strings.Join(may, ", ")
	}
	return fmt.Errorf("%s %s: %w to %s by the host's configuration: %s", what, name, ErrNotGranted, who, offer)
}

// isText reports whether every engine can have v as the value of a variable.
func isText(v string) bool { return utf8.ValidString(v) && !strings.Contains(v, "\x00") }

// maxSecret is the largest secret, in bytes.
const maxSecret = 64 << 10

func readSecret(source string) (string, error) {
	kind, at, _ := strings.Cut(source, ":")
	var v string
	if kind == "env" {
		v = os.Getenv(at)
	} else {
		info, err := os.Stat(at)
		if err != nil {
			return "", err
		}
		if !info.Mode().IsRegular() || info.Size() > maxSecret {
			return "", fmt.Errorf("%s is not a file of at most %d bytes", at, maxSecret)
		}
		data, err := os.ReadFile(at)
		if err != nil {
			return "", err
		}
		v = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	}
	switch {
	case v == "":
		return "", fmt.Errorf("%s is empty", source)
	case !isText(v):
		return "", fmt.Errorf("%s is not text in UTF-8", source)
	}
	return v, nil
}

// veil replaces secrets in texts by their names. A nil veil changes nothing.
type veil struct{ replacer *strings.Replacer }

// minVeiled is how short a text may be that a veil replaces: to replace shorter ones
// would hide other words.
const minVeiled = 4

func newVeil(secrets map[string]string) *veil {
	var hide [][2]string
	add := func(name, v string) {
		if len(v) >= minVeiled {
			hide = append(hide, [2]string{v, "[secret " + name + "]"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		v := secrets[name]
		add(name, v)
		if strings.Contains(v, "\n") { // code may print it line by line
			for line := range strings.Lines(v) {
				add(name, strings.TrimSpace(line))
			}
		}
	}
	if len(hide) == 0 {
		return nil
	}
	// The longest first: a secret may begin with another one.
	slices.SortStableFunc(hide, func(a, b [2]string) int { return len(b[0]) - len(a[0]) })
	var pairs []string
	for _, pair := range hide {
		pairs = append(pairs, pair[0], pair[1])
	}
	return &veil{strings.NewReplacer(pairs...)}
}

func (v *veil) text(s string) string {
	if v == nil {
		return s
	}
	return v.replacer.Replace(s)
}

// err returns an error whose text has no secret. It wraps err.
func (v *veil) err(err error) error {
	if v == nil || err == nil {
		return err
	}
	text := err.Error()
	if hidden := v.text(text); hidden != text {
		return &veiledError{hidden, err}
	}
	return err
}

type veiledError struct {
	text string
	err  error
}

func (e *veiledError) Error() string { return e.text }
func (e *veiledError) Unwrap() error { return e.err }
