package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/internal/pull"
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

var errReserved = errors.New("the topics of the server and of the hosts themselves are not for workers")

// streamOf returns the stream of a worker's topic. It returns an error for a stream that hosts have made:
// it has the records, the code and the messages of all tenants. A topic with wildcards is judged by the
// stream that has it.
func (h *Host) streamOf(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := h.js.Stream(ctx, name)
	if err == nil && s.CachedInfo().Config.Metadata[hostMark] != "" {
		err = errReserved
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return s, nil
}

// reserved reports whether messages on a topic act upon the server or upon hosts, of this fleet
// or of another one: code that may publish to it has all rights of the host's connection.
func (h *Host) reserved(topic string) bool {
	return strings.HasPrefix(topic, "$") || strings.HasPrefix(topic, pull.API(h.js))
}
