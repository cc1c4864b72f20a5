package identity_test

import (
	"regexp"
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewIsAnotherTokenEachTime(t *testing.T) {
	form := regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}-[a-z0-9]{10}$`)
	a, b := identity.New(), identity.New()
	if a == b || !form.MatchString(a) || identity.Token(a) != a {
		t.Errorf("%q and %q, want two tokens of the form %s", a, b, form)
	}
}

func TestTokenKeepsWhatASubjectCanHave(t *testing.T) {
	for text, want := range map[string]string{"": "", "web-1_A": "web-1_A", "a.b c>*": "a-b-c--", "ä/ö": "---"} {
		if got := identity.Token(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	if identity.Host() == "" || identity.Process() == "" {
		t.Error("a process always has a name")
	}
}
