package operator

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// KubernetesConfig configures [Kubernetes].
type KubernetesConfig struct {
	// Grants give roles to users and groups: "user:system:serviceaccount:NAMESPACE:NAME",
	// "group:system:serviceaccounts:NAMESPACE". A caller whom no grant names is refused.
	Grants []Grant

	// Audiences lists the valid audiences of a token. Empty means the API server's.
	Audiences []string

	// URL of the API server. Defaults to the API server of the pod's cluster, from the
	// environment.
	URL string

	// Dir has the pod's token and ca.crt. Defaults to where Kubernetes mounts them,
	// /var/run/secrets/kubernetes.io/serviceaccount.
	Dir string

	// Cache is how long a positive review is cached. The server may accept a
	// revoked token for that time. Defaults to 10 s.
	Cache time.Duration
}

// Kubernetes authenticates bearer tokens by asking the cluster (TokenReview of
// authentication.k8s.io/v1). The pod's own service account needs permission for that:
// the cluster role system:auth-delegator has it.
func Kubernetes(cfg KubernetesConfig) (Authenticator, error) {
	if err := checkGrants(cfg.Grants); err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if cfg.URL == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("kubernetes: not in a pod (KUBERNETES_SERVICE_HOST is not set): set URL")
		}
		cfg.URL = "https://" + net.JoinHostPort(host, port)
	}
	cfg.Dir = cmp.Or(cfg.Dir, "/var/run/secrets/kubernetes.io/serviceaccount")
	if cfg.Cache <= 0 {
		cfg.Cache = 10 * time.Second
	}
	roots, err := rootsIn(filepath.Join(cfg.Dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}
	return &kubernetes{
		cfg:    cfg,
		client: &http.Client{Timeout: 5 * time.Second, Transport: transport},
		asking: make(chan struct{}, maxAsking),
		from:   map[string]*caller{},
		cache:  map[[sha256.Size]byte]reviewed{},
	}, nil
}

// maxAsking is how many reviews there are at one time. Tokens from one address have half of them.
const maxAsking = 8

type kubernetes struct {
	cfg    KubernetesConfig
	client *http.Client
	asking chan struct{} // of size maxAsking: has the running reviews

	mu    sync.Mutex // guards the fields below
	cache map[[sha256.Size]byte]reviewed
	from  map[string]*caller // by address
}

// caller is an address from which requests wait for a review.
type caller struct {
	asking chan struct{} // of size maxAsking/2
	n      int           // requests
}

// enter waits for a place for a review. Behind guesses from one address, callers of others do not wait.
func (k *kubernetes) enter(ctx context.Context, remote string) (leave func(), err error) {
	k.mu.Lock()
	c := k.from[remote]
	if c == nil {
		c = &caller{asking: make(chan struct{}, maxAsking/2)}
		k.from[remote] = c
	}
	c.n++
	k.mu.Unlock()
	var taken []chan struct{}
	leave = func() {
		for _, place := range taken {
			<-place
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if c.n--; c.n == 0 {
			delete(k.from, remote)
		}
	}
	for _, place := range []chan struct{}{c.asking, k.asking} {
		select {
		case place <- struct{}{}:
			taken = append(taken, place)
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	return leave, nil
}

// reviewed is a token that is known.
type reviewed struct {
	who   Principal
	until time.Time // then it is reviewed again
}

// Authenticate asks the API server about a token that is not in the cache, a few at one time.
func (k *kubernetes) Authenticate(r *http.Request) (Principal, error) {
	token, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	key := sha256.Sum256([]byte(token))
	if who, ok := k.known(key); ok {
		return who, nil
	}
	leave, err := k.enter(r.Context(), hostname(r.RemoteAddr))
	if err != nil {
		return Principal{}, err
	}
	defer leave()
	if who, ok := k.known(key); ok { // another request with the token was reviewed meanwhile
		return who, nil
	}
	who, err := k.review(r.Context(), token)
	if err != nil {
		return Principal{}, fmt.Errorf("token review: %w", err)
	}
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.cache, func(_ [sha256.Size]byte, x reviewed) bool { return now.After(x.until) })
	k.cache[key] = reviewed{who, now.Add(k.cfg.Cache)}
	return who, nil
}

// known returns the caller of a token that is in the cache.
func (k *kubernetes) known(key [sha256.Size]byte) (Principal, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x, ok := k.cache[key]
	return x.who, ok && time.Now().Before(x.until)
}

// tokenReview has the needed fields of a TokenReview.
type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences,omitempty"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated"`
		Error         string   `json:"error"`
		Audiences     []string `json:"audiences"`
		User          struct {
			Username string   `json:"username"`
			Groups   []string `json:"groups"`
		} `json:"user"`
	} `json:"status"`
}

func (k *kubernetes) review(ctx context.Context, token string) (Principal, error) {
	ask := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	ask.Spec.Token, ask.Spec.Audiences = token, k.cfg.Audiences
	body, err := json.Marshal(ask)
	if err != nil {
		return Principal{}, err
	}
	own, err := os.ReadFile(filepath.Join(k.cfg.Dir, "token")) // Kubernetes renews it in place
	if err != nil {
		return Principal{}, err
	}
	url := strings.TrimRight(k.cfg.URL, "/") + "/apis/authentication.k8s.io/v1/tokenreviews"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Principal{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(own)))
	resp, err := k.client.Do(req)
	if err != nil {
		return Principal{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return Principal{}, err
	}
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK {
		return Principal{}, fmt.Errorf("the API server answers %s: "+
			"may this service account create tokenreviews (system:auth-delegator)?", resp.Status)
	}
	var answer tokenReview
	if err := json.Unmarshal(text, &answer); err != nil {
		return Principal{}, fmt.Errorf("the API server's answer: %w", err)
	}
	if !answer.Status.Authenticated {
		return Principal{}, ErrBadCredentials
	}
	// A server without support for audiences answers without them and has not checked
	// them (the API's documentation asks for this check).
	checked := slices.ContainsFunc(answer.Status.Audiences, func(a string) bool {
		return slices.Contains(k.cfg.Audiences, a)
	})
	if len(k.cfg.Audiences) > 0 && !checked {
		return Principal{}, ErrBadCredentials
	}
	user := answer.Status.User
	return granted(k.cfg.Grants, Principal{Name: user.Username, Method: "kubernetes"}, user.Groups)
}
