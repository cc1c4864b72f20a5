package host

import (
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// validPattern reports whether topic can be subscribed to.
func validPattern(topic string) bool {
	tokens := strings.Split(topic, ".")
	last := len(tokens) - 1
	for i, t := range tokens {
		if t == "*" || t == ">" && i == last {
			tokens[i] = "any"
		}
	}
	return len(topic) <= 512 && engine.ValidTopic(strings.Join(tokens, "."))
}

// matches reports whether subject matches pattern, by the rules of NATS.
func matches(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		t, restS, moreS := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return t != ""
		case p != "*" && p != t:
			return false
		case !moreP || !moreS:
			return moreP == moreS
		}
		pattern, subject = restP, restS
	}
}

// covers reports whether a pattern matches every subject that another pattern matches.
func covers(pattern, other string) bool {
	rest := strings.Split(other, ".")
	for i, p := range strings.Split(pattern, ".") {
		switch {
		case p == ">":
			return len(rest) > i
		case len(rest) <= i || rest[i] == ">":
			return false
		case p != "*" && p != rest[i]:
			return false
		}
	}
	return strings.Count(pattern, ".") == strings.Count(other, ".")
}
