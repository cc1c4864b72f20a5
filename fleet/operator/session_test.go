package operator_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// Replicas with the same key know each other's sessions. Behind a proxy that terminates
// TLS the cookie is Secure. A session that ended is over, and a changed one is none.
func TestSessionsOfReplicas(t *testing.T) {
	_, auth := tokenFile(t)
	key := []byte(strings.Repeat("k", 32))
	one, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1), SessionKey: key})
	two, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1), SessionKey: key})
	other, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1)})
	login := func(header ...string) *http.Cookie {
		t.Helper()
		code, h, text := request(t, "POST", one+"/ui/login", "token="+adaToken, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
		cookies := (&http.Response{Header: h}).Cookies()
		if code != 303 || len(cookies) != 1 {
			t.Fatalf("login: %d %v %s", code, h, text)
		}
		return cookies[0]
	}
	c := login()
	if c.Secure || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || strings.Contains(c.Value, adaToken) {
		t.Errorf("the cookie is %v", c)
	}
	for header, value := range map[string]string{"X-Forwarded-Proto": "https", "Forwarded": "for=1.2.3.4;proto=https"} {
		if c := login(header, value); !c.Secure {
			t.Errorf("behind a proxy with %s the cookie is not Secure", header)
		}
	}
	open := func(base, value string) int {
		code, _, _ := request(t, "GET", base+"/ui/workflows", "", "Cookie", c.Name+"="+value)
		return code
	}
	if a, b, x := open(one, c.Value), open(two, c.Value), open(other, c.Value); a != 200 || b != 200 || x != 401 {
		t.Errorf("the session on its server %d, on a replica %d, on a stranger %d", a, b, x)
	}
	changed := "A"
	if c.Value[20] == 'A' {
		changed = "B"
	}
	if code := open(two, c.Value[:20]+changed+c.Value[21:]); code != 401 {
		t.Errorf("a changed cookie: %d", code)
	}
	request(t, "POST", one+"/ui/logout", "", "Cookie", c.Name+"="+c.Value)
	if code := open(one, c.Value); code != 401 {
		t.Errorf("after the logout: %d", code)
	}
	if _, err := operator.New(operator.Config{SessionKey: []byte("short")}); err == nil {
		t.Error("a short key is accepted")
	}
}

// A browser drops a large cookie without a word. The form says so instead.
func TestTokenThatIsTooLongForACookie(t *testing.T) {
	for length, want := range map[int]int{2500: 303, 3500: 400} {
		token := strings.Repeat("t", length)
		path := filepath.Join(t.TempDir(), "tokens")
		write(t, path, "operator ada "+token+"\n")
		auth, err := operator.TokenFile(path, quiet)
		if err != nil {
			t.Fatal(err)
		}
		base, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1)})
		code, h, text := request(t, "POST", base+"/ui/login", "token="+token, "Content-Type", "application/x-www-form-urlencoded")
		cookie := h.Get("Set-Cookie")
		if code != want || len(cookie) > 4096 || strings.Contains(text, "the token is too long") != (want == 400) {
			t.Errorf("a token of %d bytes: %d, a cookie of %d bytes, %.300s", length, code, len(cookie), text)
		}
	}
}

// A file that does not exist is not found, for every caller.
func TestStaticFiles(t *testing.T) {
	_, auth := tokenFile(t)
	for _, cfg := range []operator.Config{{}, {Auth: auth}} {
		base, _ := serve(t, cfg)
		for path, want := range map[string]int{"/ui/static/": 404, "/ui/static/none.js": 404, "/ui/static/a/b": 404, "/ui/static/live.js": 200} {
			if code, _, _ := request(t, "GET", base+path, ""); code != want {
				t.Errorf("%s: %d, want %d", path, code, want)
			}
		}
	}
}

// A session that ends on one replica ends on all. While NATS is away the dashboard is there.
func TestSessionsEndOnEveryReplica(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{})
	_, auth := tokenFile(t)
	replica := func() string {
		ends, err := operator.OpenSessionEnds(t.Context(), b.JetStream(), "")
		if err != nil {
			t.Fatal(err)
		}
		base, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1), SessionKey: []byte(strings.Repeat("k", 32)), SessionEnds: ends})
		return base
	}
	one, two := replica(), replica()
	_, h, _ := request(t, "POST", one+"/ui/login", "token="+adaToken, "Content-Type", "application/x-www-form-urlencoded")
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	_, h, _ = request(t, "POST", one+"/ui/login", "token="+adaToken, "Content-Type", "application/x-www-form-urlencoded")
	other, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	open := func(base, cookie string) int {
		code, _, _ := request(t, "GET", base+"/ui/workflows", "", "Cookie", cookie)
		return code
	}
	if a, b := open(one, cookie), open(two, cookie); a != 200 || b != 200 {
		t.Fatalf("the session: %d and %d", a, b)
	}
	request(t, "POST", one+"/ui/logout", "", "Cookie", cookie)
	if code := open(one, cookie); code != 401 {
		t.Errorf("after signing out: %d", code)
	}
	for end := time.Now().Add(time.Minute); open(two, cookie) != 401; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the other replica still takes the session")
		}
	}
	three := replica() // which starts later
	if code := open(three, cookie); code != 401 {
		t.Errorf("on a replica that starts later: %d", code)
	}
	if code := open(three, other); code != 200 {
		t.Errorf("the other session: %d", code)
	}
}

// awayEnds cannot be asked.
type awayEnds struct{}

func (awayEnds) End(context.Context, string) error           { return errors.New("away") }
func (awayEnds) Ended(context.Context, string) (bool, error) { return false, errors.New("away") }

func TestSessionsWhileTheEndsAreAway(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Auth: auth, Workflows: newMemory(1), SessionEnds: awayEnds{}})
	_, h, _ := request(t, "POST", base+"/ui/login", "token="+adaToken, "Content-Type", "application/x-www-form-urlencoded")
	cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
	for _, want := range []int{200, 401} {
		if code, _, _ := request(t, "GET", base+"/ui/workflows", "", "Cookie", cookie); code != want {
			t.Errorf("a page: %d, want %d", code, want)
		}
		request(t, "POST", base+"/ui/logout", "", "Cookie", cookie)
	}
}

// A person who signs out while the other replicas cannot be told learns it, and until when
// the session may be valid there. The page leads on to where the sign-out leads otherwise.
func TestSignOutWhileTheEndsAreAway(t *testing.T) {
	_, tokens := tokenFile(t)
	p := newIssuer(t)
	base, ready := listen(t)
	auth, err := operator.OIDC(p.config(base))
	if err != nil {
		t.Fatal(err)
	}
	log := new(lines)
	ready(operator.Config{Auth: operator.Anyone(tokens, auth), Workflows: newMemory(1), SessionEnds: awayEnds{}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	ada, person := newJar(t), newJar(t)
	_, h, _ := request(t, "POST", base+"/ui/login", "token="+adaToken, "Content-Type", "application/x-www-form-urlencoded")
	for _, c := range (&http.Response{Header: h}).Cookies() {
		ada.cookies[c.Name] = c
	}
	if code, _, text := person.get(person.begin(base, "/ui/")); code != 200 {
		t.Fatalf("the sign-in: %d %s", code, text)
	}
	for what, tc := range map[string]struct {
		jar  *jar
		age  time.Duration
		next string
	}{"a token": {ada, 12 * time.Hour, "/ui/login"}, "a person": {person, 8 * time.Hour, p.URL + "/end?"}} {
		before := time.Now().Add(tc.age)
		code, h, text := tc.jar.send("POST", base+"/ui/logout")
		_, after, _ := strings.Cut(text, `on them until <time datetime="`)
		stamp, _, _ := strings.Cut(after, `"`)
		until, err := time.Parse(time.RFC3339, stamp)
		if code != 200 || err != nil || before.Sub(until).Abs() > time.Hour || !strings.Contains(text, "could not be told") || !strings.Contains(text, `href="`+tc.next) {
			t.Errorf("%s signs out: %d %v %s", what, code, h, text)
		}
		if len(tc.jar.cookies) != 0 {
			t.Errorf("%s keeps the cookies %v", what, tc.jar.cookies)
		}
	}
	if n := strings.Count(log.String(), "a session has ended on this replica only"); n != 2 {
		t.Errorf("the log says it %d times:\n%s", n, log.String())
	}
}
