package operator

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/token"
)

// minToken is how long a token must be: a shorter one could be guessed.
const minToken = 20

// TokenFile authenticates bearer tokens with a file that has one per line:
//
//	ROLE NAME TOKEN [EXPIRES] [services=NAMES] [workflows=NAMES] [workers=NAMES] [tenants=NAMES]
//
// ROLE is viewer, inspector or operator. NAME appears in the audit. TOKEN has 20 characters or
// more, or is "sha256:" and the hexadecimal digest of such a token; then the file is
// not a secret. EXPIRES is a time of RFC 3339. NAMES, with commas and * for any text,
// say where the role is valid, as in [Grant]; without them it is the whole fleet. Empty
// lines and lines that begin with # are skipped.
//
// TokenFile reads the file again at most once a second, also a Kubernetes secret whose
// symbolic link has moved. When the new file cannot be read or has an invalid line,
// TokenFile logs that and refuses every token until the file is valid: a typo must not make
// a revoked token valid again.
func TokenFile(path string, log *slog.Logger) (Authenticator, error) {
	f, err := newFileCache(path, "the token file", log, parseTokens)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	return &tokenFile{f}, nil
}

type tokenFile struct {
	*fileCache[map[token.Digest]Principal]
}

func (f *tokenFile) Authenticate(r *http.Request) (Principal, error) {
	given, err := bearer(r)
	if err != nil {
		return Principal{}, err
	}
	tokens, err := f.get()
	if err != nil {
		return Principal{}, fmt.Errorf("the token file cannot be used: %w", err)
	}
	p, ok := tokens[token.DigestOf(given)]
	switch {
	case !ok:
		return Principal{}, ErrBadCredentials
	case !p.Until.IsZero() && !f.now().Before(p.Until):
		return Principal{}, ErrExpired
	}
	return p, nil
}

// parseTokens reads a token file. Its errors name the line and never a token.
func parseTokens(text []byte) (map[token.Digest]Principal, error) {
	tokens := map[token.Digest]Principal{}
	names, digests := map[string]int{}, map[token.Digest]int{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		digest, who, err := parseToken(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if before, ok := names[who.Name]; ok {
			return nil, fmt.Errorf("line %d: the name %q is on line %d already", n, who.Name, before)
		}
		if before, ok := digests[digest]; ok {
			return nil, fmt.Errorf("line %d: the token is on line %d already", n, before)
		}
		names[who.Name], digests[digest], tokens[digest] = n, n, who
	}
	if len(tokens) == 0 {
		return nil, errors.New("has no token: want lines of ROLE NAME TOKEN [EXPIRES]")
	}
	return tokens, nil
}

func parseToken(fields []string) (digest token.Digest, who Principal, err error) {
	fail := func(format string, args ...any) (token.Digest, Principal, error) {
		return digest, who, fmt.Errorf(format, args...)
	}
	var scope Grant
	for len(fields) > 3 && strings.Contains(fields[len(fields)-1], "=") {
		kind, names, _ := strings.Cut(fields[len(fields)-1], "=")
		list := map[string]*[]string{
			"services":  &scope.Services,
			"workflows": &scope.Workflows,
			"workers":   &scope.Workers,
			"tenants":   &scope.Tenants,
		}[kind]
		switch {
		case list == nil:
			return fail("has %q: want services=, workflows=, workers= or tenants=", kind+"=")
		case *list != nil:
			return fail("has %s= twice", kind)
		}
		*list = strings.Split(names, ",")
		fields = fields[:len(fields)-1]
	}
	if len(fields) != 3 && len(fields) != 4 {
		return fail("has %d words, want ROLE NAME TOKEN [EXPIRES] and where the role is valid", len(fields))
	}
	role, err := ParseRole(fields[0])
	if err != nil {
		return digest, who, err
	}
	who = Principal{Name: fields[1], Role: role, Method: "token"}
	if scope.Role = role; !scope.whole() {
		if err := scope.check(); err != nil {
			return digest, who, err
		}
		who.Role, who.Grants = RoleNone, []Grant{scope}
	}
	if text, ok := strings.CutPrefix(fields[2], "sha256:"); ok {
		raw, err := hex.DecodeString(text)
		if err != nil || len(raw) != len(digest) {
			return fail("the digest is not 64 hexadecimal digits")
		}
		copy(digest[:], raw)
	} else {
		if err := token.Check(fields[2], minToken, token.MaxBearer); err != nil {
			return digest, who, err
		}
		digest = token.DigestOf(fields[2])
	}
	if len(fields) == 4 {
		if who.Until, err = time.Parse(time.RFC3339, fields[3]); err != nil {
			return fail("expires %q is not a time of RFC 3339, such as 2030-01-31T12:00:00Z", fields[3])
		}
	}
	return digest, who, nil
}
