package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
)

// HTTP says which HTTP requests a worker's code may send, with the function fetch of its
// language. The host sends them: see package outbound.
type HTTP struct {
	// Allow has patterns of URLs, such as "https://api.example.com/v1/*". Each must be
	// within one that Config.Grants has for the tenant.
	Allow []string `json:"allow,omitempty"`
	// Secrets are names of secrets that the code may put into headers of requests as
	// ${NAME}: each into the header and for the URLs that the grant says. The code does not
	// get their values.
	Secrets []string `json:"secrets,omitempty"`
}

// HTTPGrant says which HTTP requests the workers of a tenant may ask for.
type HTTPGrant struct {
	// Allow has patterns of URLs.
	Allow []string `koanf:"allow"`
	// Networks are those, such as "10.1.0.0/16", that requests may reach although they
	// are not public.
	Networks []string `koanf:"networks"`
	// Secrets says where each of Grant.Secrets may go. One that is not here goes into no
	// request.
	Secrets map[string]HTTPSecret `koanf:"secrets"`
}

// HTTPSecret says which header of which requests may have a secret.
type HTTPSecret struct {
	// Header is the name of the header, such as "Authorization".
	Header string `koanf:"header"`
	// URL is a pattern of URLs.
	URL string `koanf:"url"`
}

func (w HTTP) validate() error {
	if len(w.Allow) > maxNames || len(w.Secrets) > maxNames {
		return fmt.Errorf("http: %w: %d patterns and %d secrets are more than %d",
			ErrInvalid, len(w.Allow), len(w.Secrets), maxNames)
	}
	var errs []error
	for _, text := range w.Allow {
		if _, err := outbound.Parse(text); err != nil {
			errs = append(errs, fmt.Errorf("http.allow: %w: %w", ErrInvalid, err))
		}
	}
	for _, name := range w.Secrets {
		if err := engine.CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("http.secrets: %w: %w", ErrInvalid, err))
		}
	}
	return errors.Join(errs...)
}

// sorted returns a copy whose lists are sorted.
func (w HTTP) sorted() HTTP {
	return HTTP{slices.Sorted(slices.Values(w.Allow)), slices.Sorted(slices.Values(w.Secrets))}
}

func (g HTTPGrant) validate() error {
	_, err := outbound.New(outbound.Policy{}, g.Networks)
	errs := []error{err}
	for _, text := range g.Allow {
		_, err := outbound.Parse(text)
		errs = append(errs, err)
	}
	for _, name := range slices.Sorted(maps.Keys(g.Secrets)) {
		_, err := outbound.Parse(g.Secrets[name].URL)
		errs = append(errs, err)
		if g.Secrets[name].Header == "" {
			errs = append(errs, fmt.Errorf("secrets.%s: the header is missing", name))
		}
	}
	return errors.Join(errs...)
}

// newClients makes a client for each tenant that has a grant. Tenants without one share that
// of "*".
func (h *Host) newClients() error {
	h.clients = make(map[string]*outbound.Client)
	for tenant := range maps.Keys(h.cfg.Grants) {
		var networks []string
		for _, g := range h.grantsOf(tenant) {
			networks = append(networks, g.HTTP.Networks...)
		}
		client, err := outbound.New(h.cfg.HTTP, networks)
		if err != nil {
			return fmt.Errorf("host: grants.%s.http: %w", tenant, err)
		}
		h.clients[tenant] = client
	}
	return nil
}

func (h *Host) closeClients() {
	for _, client := range h.clients {
		client.Close()
	}
}

// web sends the requests of one worker.
type web struct {
	client  *outbound.Client
	scope   outbound.Scope
	most    int   // requests of one message
	refused error // why it sends none
}

var (
	errNoHTTP   = errors.New("fetch: not allowed: the worker's spec has no http.allow")
	errTestHTTP = errors.New("fetch: a test sends requests only with workers test --http")
)

// withoutHTTP sends nothing in a test.
var withoutHTTP = web{refused: errTestHTTP}

// newWeb returns what sends a worker's requests, to no URL yet.
func (h *Host) newWeb(r *Record) *web {
	if len(r.HTTP.Allow) == 0 {
		return &web{refused: errNoHTTP}
	}
	client := h.clients[r.Tenant]
	if client == nil {
		client = h.clients[anyTenant]
	}
	scope := outbound.Scope{Secrets: make(map[string]outbound.Secret)}
	return &web{client: client, scope: scope, most: h.cfg.HTTP.WithDefaults().MaxRequests}
}

// allow allows the URLs of a pattern.
func (w *web) allow(pattern string) error {
	p, err := outbound.Parse(pattern)
	if err != nil {
		return fmt.Errorf("http.allow: %w", err)
	}
	w.scope.Allow = append(w.scope.Allow, p)
	return nil
}

// addSecret lets requests have a secret in a header.
func (w *web) addSecret(name, v string, to HTTPSecret) error {
	p, err := outbound.Parse(to.URL)
	if err == nil && w.refused == nil {
		w.scope.Secrets[name] = outbound.Secret{Value: v, Header: to.Header, URLs: []outbound.Pattern{p}}
	}
	return err
}

// mayAsk returns which grant lets a worker's tenant ask for the URLs of a pattern. The error wraps
// [ErrNotGranted].
func (h *Host) mayAsk(r *Record, pattern string) (by string, err error) {
	by, err = h.mayName(r, "HTTP to", pattern, "http.allow", func(g *Grant) []string { return g.HTTP.Allow }, func(offer, pattern string) bool {
		o, wrong := outbound.Parse(offer)
		p, invalid := outbound.Parse(pattern)
		return wrong == nil && invalid == nil && o.Covers(p)
	})
	if by == "" && err == nil {
		err = refusal(r, "HTTP to", pattern, nil)
	}
	return by, err
}

// secretGoes returns where a secret of a worker's tenant may go, and which grant says so.
func (h *Host) secretGoes(r *Record, name string) (to HTTPSecret, by string, err error) {
	var names []string
	for _, g := range h.grantsOf(r.Tenant) {
		if to, ok := g.HTTP.Secrets[name]; ok {
			return to, "grants." + g.tenant + ".http.secrets." + name, nil
		}
		names = slices.AppendSeq(names, maps.Keys(g.HTTP.Secrets))
	}
	return to, "", refusal(r, "a header with the secret", name, names)
}

// Fetch sends a request for the handler.
func (h *handle) Fetch(ctx context.Context, r *engine.Request) (*engine.Response, error) {
	switch {
	case h.web == nil:
		return nil, errNoHTTP
	case h.web.refused != nil:
		return nil, h.web.refused
	case h.fetched == h.web.most:
		return nil, fmt.Errorf("fetch: a message may send %d requests", h.web.most)
	}
	h.fetched++
	return h.web.client.Do(ctx, &h.web.scope, r)
}
