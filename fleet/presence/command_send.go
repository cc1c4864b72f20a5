package presence

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Drain asks a process to stop as a signal would, and returns the process's phase once
// it has agreed. who names the operator in the process's log; "" is the fingerprint of
// the Fleet's key.
func (f *Fleet) Drain(ctx context.Context, id, reason, who string) (phase string, err error) {
	a, err := f.ask(ctx, id, command{Do: "drain", Reason: reason, Who: who})
	return a.Phase, err
}

// Suspend asks a process to report that it is not ready until Resume. The reason must
// not be empty.
func (f *Fleet) Suspend(ctx context.Context, id, reason, who string) (phase string, err error) {
	a, err := f.ask(ctx, id, command{Do: "suspend", Reason: reason, Who: who})
	return a.Phase, err
}

// Resume ends a suspension.
func (f *Fleet) Resume(ctx context.Context, id, who string) (phase string, err error) {
	a, err := f.ask(ctx, id, command{Do: "resume", Who: who})
	return a.Phase, err
}

// ask sends a signed command, and waits for the answer that the process has signed. It
// ignores all other answers.
func (f *Fleet) ask(ctx context.Context, id string, c command) (a answer, err error) {
	p, err := f.Get(ctx, id)
	if err != nil {
		return a, err
	}
	public := f.registry.key(p.ID)
	if public == nil {
		return a, fmt.Errorf("%w: %q: %s", ErrNotFound, text.Clip(id, maxShown), p.Suspect)
	}
	subject := commandSubject(f.cfg, p.ID)
	now := time.Now().UTC()
	c.Who = cmp.Or(c.Who, "the operator with the key "+fingerprint(publicOf(f.key)))
	c.Life, c.Nonce = fingerprint(public), rand.Text()
	c.Issued, c.Expires = now, now.Add(min(f.cfg.CommandTimeout, maxValid))
	body, err := json.Marshal(c)
	if err != nil {
		return a, fmt.Errorf("presence: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CommandTimeout)
	defer cancel()
	a, err = f.request(ctx, subject, seal(f.key, "command "+subject, body), func(a answer, key ed25519.PublicKey) bool {
		return key.Equal(public) && a.Nonce == c.Nonce
	})
	switch {
	case errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded):
		return answer{}, fmt.Errorf("%w: %s: %w", ErrUnreachable, p.ID, err)
	case err != nil:
		return answer{}, fmt.Errorf("presence: %s %s: %w", c.Do, p.ID, err)
	case a.Error != "":
		return a, fmt.Errorf("%w: %s", ErrRefused, a.Error)
	}
	return a, nil
}

// request sends a command and returns the first signed answer for which isRight is true.
func (f *Fleet) request(
	ctx context.Context, subject string, message []byte, isRight func(a answer, signer ed25519.PublicKey) bool,
) (a answer, err error) {
	nc := f.js.Conn()
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return a, err
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, message); err != nil {
		return a, err
	}
	others := 0
	for {
		m, err := answers.NextMsgWithContext(ctx)
		switch {
		case err != nil && others > 0:
			return a, fmt.Errorf("%w; %d answers came that the process has not signed", err, others)
		case err != nil:
			return a, err
		case len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return a, nats.ErrNoResponders
		}
		key, body, err := unseal("answer "+subject, m.Data)
		var a answer
		if err != nil || json.Unmarshal(body, &a) != nil || !isRight(a, key) {
			others++
			continue
		}
		a.Error = strings.ToValidUTF8(a.Error, "\uFFFD")
		return a, nil
	}
}
