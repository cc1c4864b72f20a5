package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/time/rate"
)

// Times of a provider's keys.
const (
	keysAge  = 10 * time.Minute // then they are read again: a key that was withdrawn must not stay
	keysMost = time.Hour        // how long they are used while the provider is away
	maxKeys  = 100
)

// keySet has the keys of a provider (JWKS). It is an oidc.KeySet.
type keySet struct {
	client *http.Client
	url    string
	asks   *rate.Limiter // reads because of unknown keys, which any caller may name
	sem    chan struct{} // of size 1: guards the fields below

	keys []jose.JSONWebKey
	at   time.Time // when they were read
	next time.Time // when they may be read again after a failure
	err  error     // of the last try
}

func newKeySet(client *http.Client, url string) *keySet {
	return &keySet{client: client, url: url, sem: make(chan struct{}, 1), asks: rate.NewLimiter(rate.Every(10*time.Second), 5)}
}

var errUnsigned = errors.New("no key of the provider has signed it")

// VerifySignature returns the payload of a JWT that one of the keys has signed.
func (k *keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	algorithms := make([]jose.SignatureAlgorithm, len(signatures))
	for i, a := range signatures {
		algorithms[i] = jose.SignatureAlgorithm(a)
	}
	jws, err := jose.ParseSignedCompact(jwt, algorithms)
	if err != nil {
		return nil, err
	}
	keys, read, err := k.fresh(ctx, time.Now().Add(-keysAge), keysMost)
	if err != nil {
		return nil, k.fault(ctx, err)
	}
	if payload, ok := open(jws, keys); ok {
		return payload, nil
	}
	if !k.asks.Allow() {
		return nil, errUnsigned
	}
	keys, _, err = k.fresh(ctx, read.Add(1), 0) // newer than those that do not fit
	if err != nil {
		return nil, k.fault(ctx, err)
	}
	if payload, ok := open(jws, keys); ok {
		return payload, nil
	}
	return nil, errUnsigned
}

// fault tells the caller of the verifier, which hides errors, that the keys could not be
// read.
func (k *keySet) fault(ctx context.Context, err error) error {
	if away, ok := ctx.Value(faultKey{}).(*error); ok {
		*away = err
	}
	return err
}

// open returns the payload when one of the keys has signed it.
func open(jws *jose.JSONWebSignature, keys []jose.JSONWebKey) ([]byte, bool) {
	if len(jws.Signatures) != 1 {
		return nil, false
	}
	head := jws.Signatures[0].Header
	for i := range keys {
		key := &keys[i]
		if head.KeyID != "" && key.KeyID != "" && key.KeyID != head.KeyID || key.Algorithm != "" && key.Algorithm != head.Algorithm {
			continue
		}
		if payload, err := jws.Verify(key); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// fresh returns the keys, which it reads again when they were read before that moment.
// While that fails it returns those that are not older than most.
func (k *keySet) fresh(ctx context.Context, before time.Time, most time.Duration) ([]jose.JSONWebKey, time.Time, error) {
	select {
	case k.sem <- struct{}{}:
		defer func() { <-k.sem }()
	case <-ctx.Done():
		return nil, time.Time{}, ctx.Err()
	}
	if !k.at.Before(before) {
		return k.keys, k.at, nil
	}
	if now := time.Now(); k.err == nil || !now.Before(k.next) {
		var keys []jose.JSONWebKey
		keys, k.err = k.read(context.WithoutCancel(ctx))
		if k.err == nil {
			k.keys, k.at = keys, now
			return k.keys, k.at, nil
		}
		k.next = time.Now().Add(providerRetry) // those who waited for this try do not try again
	}
	if time.Since(k.at) < most {
		return k.keys, k.at, nil
	}
	return nil, time.Time{}, k.err
}

func (k *keySet) read(ctx context.Context) ([]jose.JSONWebKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %s", k.url, resp.Status)
	}
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", k.url, err)
	}
	var keys []jose.JSONWebKey
	for _, raw := range doc.Keys[:min(len(doc.Keys), maxKeys)] {
		var key jose.JSONWebKey
		// A key of a kind that is not known here belongs to other clients.
		if key.UnmarshalJSON(raw) == nil && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no public key for signatures", k.url)
	}
	return keys, nil
}
