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
	"github.com/pleme-io/lifecycle-go/fleet/internal/effects"
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
	// Topics are what the tenant's workers may take, and Outputs what they may publish:
	// subjects, with * for one token and > for the rest. A tenant that has Topics, or for
	// which "*" has Topics, takes nothing else; Outputs likewise. Without them it may name
	// every subject that does not belong to the server or to the hosts.
	Topics  []string `koanf:"topics"`
	Outputs []string `koanf:"outputs"`
	// Handlers is how many messages of the tenant a host handles at once in children, and
	// Memory lowers that to as many as it has memory for. Lines is how many lines a second a
	// worker of the tenant may log in the long run, and Timers how many it may have. What is 0
	// is what "*" has, and without that the host's own bound: Config.MaxHandlers,
	// Config.MemoryBudget, 100, and 10,000.
	Handlers int   `koanf:"handlers"`
	Memory   int64 `koanf:"memory"`
	Lines    int   `koanf:"lines"`
	Timers   int   `koanf:"timers"`
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
		if g.Handlers < 0 || g.Memory < 0 || g.Lines < 0 || g.Timers < 0 || g.Timers > effects.MaxTimers {
			errs = append(errs, fmt.Errorf("grants.%s: handlers, memory, lines and timers must not be negative, and timers at most %d",
				tenant, effects.MaxTimers))
		}
		for _, topic := range slices.Concat(g.Topics, g.Outputs) {
			if !validPattern(topic) {
				errs = append(errs, fmt.Errorf("grants.%s: topic %.200q: %w: want tokens between single dots, "+
					"* for one token and > for the rest", tenant, topic, ErrInvalid))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(g.Keys)) {
			_, err := codesign.ParsePublic(g.Keys[name])
			errs = append(errs, inGrant(tenant, "keys."+name, err))
		}
		for _, name := range slices.Sorted(maps.Keys(g.Secrets)) {
			errs = append(errs, inGrant(tenant, "secrets", engine.CheckName(name)))
			if kind, at, ok := strings.Cut(g.Secrets[name], ":"); !ok || at == "" || kind != "env" && kind != "file" {
				// The text may be the secret itself, so the error does not have it.
				errs = append(errs, fmt.Errorf("grants.%s.secrets.%s: want env:NAME or file:PATH, and not the secret itself",
					tenant, name))
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

// namedGrant is a grant with the tenant that Config.Grants has it for.
type namedGrant struct {
	tenant string
	Grant
}

// grantsOf returns the grants of a tenant: its own first, then the grant of all tenants.
func (h *Host) grantsOf(tenant string) []namedGrant {
	all := []namedGrant{{anyTenant, h.cfg.Grants[anyTenant]}}
	if own, ok := h.cfg.Grants[tenant]; ok && tenant != "" && tenant != anyTenant {
		all = slices.Insert(all, 0, namedGrant{tenant, own})
	}
	return all
}

// bounds returns the numbers that are granted to a tenant; 0 is the host's own bound.
func (h *Host) bounds(tenant string) Grant {
	var all Grant
	for _, g := range h.grantsOf(tenant) {
		all.Handlers = cmp.Or(all.Handlers, g.Handlers)
		all.Memory = cmp.Or(all.Memory, g.Memory)
		all.Lines = cmp.Or(all.Lines, g.Lines)
		all.Timers = cmp.Or(all.Timers, g.Timers)
	}
	return all
}

// maxTimers returns how many timers a worker may have.
func (h *Host) maxTimers(r *Record) int { return cmp.Or(h.bounds(r.Tenant).Timers, effects.MaxTimers) }

// maxLines returns how many lines a second a worker may log in the long run.
func (h *Host) maxLines(r *Record) int { return cmp.Or(h.bounds(r.Tenant).Lines, linesRate) }

// means are what a worker's code gets beside its messages and its state.
type means struct {
	env      map[string]string
	redactor *redactor // replaces the secrets
	web      *web
}

// granted returns the means of a worker. The error wraps [ErrNotGranted] and has no value.
func (h *Host) granted(r *Record) (*means, error) {
	env, secrets := make(map[string]string), make(map[string]string)
	w := h.newWeb(r)
	var errs []error
	for _, m := range h.asks(r) {
		err := m.err
		switch {
		case err != nil:
		case m.What == "variable":
			env[m.Name] = m.value
		case m.What == "url":
			err = w.allow(m.Name)
		case m.What == "secret", m.What == "url secret":
			var v string
			if v, err = readSecret(m.value); err != nil {
				err = fmt.Errorf("secret %s: %w", m.Name, err)
				break
			}
			secrets[m.Name] = v
			if m.What == "secret" {
				env[m.Name] = v
			} else {
				err = w.addSecret(m.Name, v, m.goes)
			}
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return &means{}, err
	}
	return &means{env: env, redactor: newRedactor(secrets), web: w}, nil
}

// mayTake returns which grant lets a worker's tenant take a topic, "" when the tenant may name
// every subject. The error wraps [ErrNotGranted].
func (h *Host) mayTake(r *Record, topic string) (by string, err error) {
	return h.mayName(r, "topic", topic, "topics", func(g *Grant) []string { return g.Topics }, covers)
}

// mayPublish is mayTake for an output.
func (h *Host) mayPublish(r *Record, topic string) (by string, err error) {
	return h.mayName(r, "output to", topic, "outputs", func(g *Grant) []string { return g.Outputs }, covers)
}

// mayName returns the first pattern that covers a name, as grants.TENANT.KEY: PATTERN.
func (h *Host) mayName(
	r *Record, what, name, key string, of func(*Grant) []string, covers func(pattern, name string) bool,
) (by string, err error) {
	var offered []string
	for _, g := range h.grantsOf(r.Tenant) {
		for _, offer := range of(&g.Grant) {
			if covers(offer, name) {
				return "grants." + g.tenant + "." + key + ": " + offer, nil
			}
			offered = append(offered, offer)
		}
	}
	if len(offered) == 0 {
		return "", nil
	}
	return "", refusal(r, what, name, offered)
}

// secret returns where the host reads a secret, and which grant has it.
func (h *Host) secret(r *Record, name string) (source, by string, err error) {
	return h.lookUp(r, "secret", name, "secrets", func(g *Grant) map[string]string { return g.Secrets })
}

// lookUp returns what a name stands for in the grants of a worker's tenant, and where it is as
// grants.TENANT.KEY.NAME.
func (h *Host) lookUp(
	r *Record, what, name, key string, of func(*Grant) map[string]string,
) (value, by string, err error) {
	var names []string
	for _, g := range h.grantsOf(r.Tenant) {
		if v, ok := of(&g.Grant)[name]; ok {
			return v, "grants." + g.tenant + "." + key + "." + name, nil
		}
		names = slices.AppendSeq(names, maps.Keys(of(&g.Grant)))
	}
	return "", "", refusal(r, what, name, names)
}

func refusal(r *Record, what, name string, may []string) error {
	who := "workers without a tenant"
	if r.Tenant != "" {
		who = "the tenant " + r.Tenant
	}
	offer := "it has none"
	if len(may) > 0 {
		slices.Sort(may)
		offer = "it has " + strings.Join(slices.Compact(may), ", ")
	}
	return fmt.Errorf("%s %s: %w to %s by the host's configuration: %s", what, name, ErrNotGranted, who, offer)
}

// signed returns nil when a worker may run code: one of its tenant's keys has signed the
// code, or there are no keys. The error wraps [ErrNotSigned].
func (h *Host) signed(r *Record, code []byte) error {
	var keys []ed25519.PublicKey
	var names []string
	for _, g := range h.grantsOf(r.Tenant) {
		for name, text := range g.Keys {
			key, err := codesign.ParsePublic(text)
			if err != nil {
				return fmt.Errorf("%w: the key %s: %w", ErrNotSigned, name, err) // Validate has refused it
			}
			keys, names = append(keys, key), append(names, name)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(names)
	of := codesign.Code{Tenant: r.Tenant, Worker: r.ID, MIMEType: r.MIMEType, Digest: fetch.Digest(code)}
	switch {
	case len(r.Signature) == 0:
		return fmt.Errorf("%w: the host's configuration wants a signature of %s", ErrNotSigned, strings.Join(names, " or "))
	case !codesign.Verify(keys, of, r.Signature):
		return fmt.Errorf("%w by %s: its signature is for another code, kind, worker or tenant, or of another key",
			ErrNotSigned, strings.Join(names, " or "))
	}
	return nil
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
