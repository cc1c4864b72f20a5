package operator

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// reviewedBy returns the authentication of a server in a pod whose tokens an API server reviews.
func reviewedBy(t *testing.T, api *httptest.Server) Authenticator {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"token":  []byte("pod-token"),
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	auth, err := Kubernetes(KubernetesConfig{URL: api.URL, Dir: dir, Grants: []Grant{{Subject: "user:ada", Role: RoleOperator}}})
	if err != nil {
		t.Fatal(err)
	}
	auth.(*kubernetes).client.Timeout = time.Minute // the guesses hold their places
	return auth
}

// The server asks the API server about a few unknown tokens at one time, also when more wait.
func TestReviewsAreBounded(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{}, 64)
	var running, most atomic.Int64
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		asked <- struct{}{}
		<-release
		running.Add(-1) // before the client knows
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"status":{"authenticated":false}}`))
	}))
	defer api.Close()
	auth := reviewedBy(t, api)
	guesses := make(chan error, 20)
	for i := range cap(guesses) {
		go func() {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
			r.RemoteAddr = fmt.Sprintf("10.0.0.%d:4000", i)
			r.Header.Set("Authorization", "Bearer "+fmt.Sprint("guess", i))
			_, err := auth.Authenticate(r)
			guesses <- err
		}()
	}
	for range maxAsking {
		<-asked
	}
	if n := running.Load(); n != maxAsking {
		t.Errorf("%d reviews at one time", n)
	}
	close(release)
	for range cap(guesses) {
		if err := <-guesses; !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a guess: %v", err)
		}
	}
	if n := most.Load(); n != maxAsking {
		t.Errorf("%d reviews at one time", n)
	}
}

// Guesses from one address hold half of the reviews at most: the review of a caller from another
// address does not wait for them.
func TestReviewsAreShared(t *testing.T) {
	release, asked := make(chan struct{}), make(chan string, 64)
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask struct{ Spec struct{ Token string } }
		json.NewDecoder(r.Body).Decode(&ask)
		asked <- ask.Spec.Token
		good := ask.Spec.Token == "good"
		if !good {
			<-release
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"status":{"authenticated":%v,"user":{"username":"ada"}}}`, good)
	}))
	defer api.Close()
	auth := reviewedBy(t, api)
	authenticate := func(remote, token string) error {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
		r.RemoteAddr = remote
		r.Header.Set("Authorization", "Bearer "+token)
		_, err := auth.Authenticate(r)
		return err
	}
	guesses := make(chan error, 20)
	for i := range cap(guesses) {
		go func() { guesses <- authenticate("10.0.0.1:4000", fmt.Sprint("guess", i)) }()
	}
	for range 4 {
		<-asked
	}
	if err := authenticate("10.0.0.2:4000", "good"); err != nil {
		t.Errorf("a caller beside the guesses: %v", err)
	}
	if token := <-asked; token != "good" {
		t.Errorf("%s was reviewed beside four other guesses", token)
	}
	close(release)
	for range cap(guesses) {
		if err := <-guesses; !errors.Is(err, ErrBadCredentials) {
			t.Errorf("a guess: %v", err)
		}
	}
	if n := len(auth.(*kubernetes).from); n != 0 {
		t.Errorf("%d addresses are remembered", n)
	}
}
