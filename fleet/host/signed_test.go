package host_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// signer is a key to sign code with.
type signer struct {
	public string
	key    ed25519.PrivateKey
}

func newSigner(t *testing.T) signer {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	return signer{base64.StdEncoding.EncodeToString(public), key}
}

// sign returns the spec with a signature of its code.
func (s signer) sign(t *testing.T, spec host.Spec) host.Spec {
	t.Helper()
	var err error
	spec.Signature, err = codesign.Sign(s.key, codesign.Code{Tenant: spec.Tenant, Worker: spec.ID, MIMEType: spec.MIMEType, Digest: fetch.Digest(spec.Code)})
	must(t, err)
	return spec
}

// A tenant that has keys runs only code that one of them has signed: no call takes other
// code, and a host does not load it either.
func TestOnlySignedCodeRuns(t *testing.T) {
	r := newRig(t)
	old, current, stranger := newSigner(t), newSigner(t), newSigner(t)
	keys := map[string]string{"old": old.public, "new": current.public}
	r.tune = func(c *host.Config) {
		c.Grants = map[string]host.Grant{"acme": {Keys: keys}, "free": {}}
	}
	h := r.start("a")
	spec := host.Spec{ID: "w", Tenant: "acme", MIMEType: "text/x-starlark", Topic: "work.w", OutputTopic: "out.w", Code: prefix("one ")}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, host.ErrNotSigned) || !strings.Contains(err.Error(), "new or old") {
			t.Errorf("%s: %v", what, err)
		}
	}
	apply := func(s host.Spec) error { _, err := h.Apply(t.Context(), s); return err }
	_, err := h.Create(t.Context(), spec)
	refused("create without a signature", err)
	refused("apply without one", apply(spec))
	refused("another key", apply(stranger.sign(t, spec)))
	other := spec
	other.ID = "v"
	other.Signature = current.sign(t, spec).Signature
	refused("the signature of another worker", apply(other))
	free := spec
	free.ID, free.Tenant = "free", "free"
	must(t, apply(free)) // its tenant has no keys

	must(t, apply(old.sign(t, spec)))
	r.publish("work.w", "x")
	r.wantOutputs("out.w", "one x", "one x")
	must(t, h.Delete(t.Context(), "free"))

	second := spec
	second.Code, second.Signature = prefix("two "), old.sign(t, spec).Signature
	refused("new code with the old signature", apply(second))
	refused("new code without one", h.LoadCodeFromContent(t.Context(), "w", second.Code))
	_, err = h.Test(t.Context(), "w", host.TestRequest{Data: []byte("x"), Code: second.Code})
	refused("a test of other code", err)
	second = current.sign(t, second)
	must(t, h.LoadCodeFromContent(t.Context(), "w", second.Code, host.Signature(second.Signature)))
	_, err = h.Test(t.Context(), "w", host.TestRequest{Data: []byte("x"), Digest: fetch.Digest(spec.Code)})
	must(t, err)
	must(t, h.Rollback(t.Context(), "w", fetch.Digest(spec.Code)))
	must(t, apply(second))
	r.publish("work.w", "y")
	r.wantOutputs("out.w", "one x", "one x", "two y")

	// A record and code that were written past the hosts do not run.
	rec := r.record(h)
	forged := prefix("forged ")
	m := nats.NewMsg("$host.code.w." + rec.UID + "." + fetch.Digest(forged) + ".0")
	m.Data = forged
	m.Header.Set("Lifecycle-Chunks", "1")
	_, err = r.js.PublishMsg(t.Context(), m)
	must(t, err)
	kv, err := r.js.KeyValue(t.Context(), "HOST_WORKERS")
	must(t, err)
	entry, err := kv.Get(t.Context(), "w")
	must(t, err)
	var stored map[string]any
	must(t, json.Unmarshal(entry.Value(), &stored))
	stored["digest"], stored["generation"] = fetch.Digest(forged), rec.Generation+1
	text, err := json.Marshal(stored)
	must(t, err)
	_, err = kv.Put(t.Context(), "w", text)
	must(t, err)
	r.eventually("the worker has failed", func() bool {
		rec := r.record(h)
		return rec.State == host.StateFailed && strings.Contains(rec.Reason, "the code is not signed by new or old")
	})
	r.publish("work.w", "z")
	must(t, apply(second)) // what the record has is not what the spec says
	r.eventually("the message is handled", func() bool { return len(r.outputs("out.w")) >= 4 })
	for _, o := range r.outputs("out.w") {
		if strings.HasPrefix(o, "forged") {
			t.Errorf("forged code ran: %q", o)
		}
	}

	// A host that does not know the old key any more runs only what the new one signed.
	keys = map[string]string{"new": current.public}
	r.stop(h)
	h = r.start("b")
	r.publish("work.w", "after")
	r.eventually("the code of the new key runs", func() bool { return len(r.outputs("out.w")) >= 5 })
	if err := h.Rollback(t.Context(), "w", fetch.Digest(spec.Code)); !errors.Is(err, host.ErrNotSigned) {
		t.Errorf("a rollback to code of a key that is gone: %v", err)
	}
}

// A configuration with a key that is none is refused.
func TestKeysAreValidated(t *testing.T) {
	r := newRig(t)
	_, err := host.New(r.js, host.Config{Grants: map[string]host.Grant{"acme": {Keys: map[string]string{"release": "hunter2"}}}})
	if err == nil || !strings.Contains(err.Error(), "grants.acme.keys.release: it is not an Ed25519 public key") {
		t.Errorf("New: %v", err)
	}
}
