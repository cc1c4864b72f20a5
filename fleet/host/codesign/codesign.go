// Package codesign signs the code of hosted workers with Ed25519 (RFC 8032), and
// verifies it. A signature is for one code, one kind of code and one worker of one
// tenant: it is worth nothing for another worker, nor for the same code as another kind.
//
// openssl makes the keys:
//
//	openssl genpkey -algorithm ed25519 -out code.key
//	openssl pkey -in code.key -pubout -out code.pub
//
// Begin with [Sign] and [Verify]; [DigestOf] is what both sign. It imports only the standard
// library. Package host verifies, and "lifecyclectl sign" signs.
package codesign

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// Code is what a signature is for.
type Code struct {
	Tenant, Worker string
	MIMEType       string
	Digest         string // SHA-256 of the code, in hex
}

// DigestOf returns the Digest of a code.
func DigestOf(code []byte) string {
	sum := sha256.Sum256(code)
	return hex.EncodeToString(sum[:])
}

// context keeps a signature from being one for anything else that the key signs.
const context = "lifecycle hosted code, version 1"

// text returns what is signed: one line for each field. No field has a line break, as
// [Code.check] checks.
func (c Code) text() []byte {
	return []byte(strings.Join([]string{context, c.Tenant, c.Worker, c.MIMEType, c.Digest, ""}, "\n"))
}

func (c Code) check() error {
	if strings.ContainsAny(c.Tenant+c.Worker+c.MIMEType, "\r\n\x00") || c.Worker == "" || c.MIMEType == "" {
		return fmt.Errorf("the code of %.100q cannot be signed: its id and kind must be there, without line breaks", c.Worker)
	}
	raw, err := hex.DecodeString(c.Digest)
	if err != nil || len(raw) != sha256.Size || c.Digest != strings.ToLower(c.Digest) {
		return fmt.Errorf("the code of %.100q cannot be signed: %.80q is not a SHA-256 in hex", c.Worker, c.Digest)
	}
	return nil
}

// Sign returns the signature of a code.
func Sign(key ed25519.PrivateKey, c Code) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("the key to sign with is not an Ed25519 key")
	}
	return ed25519.Sign(key, c.text()), nil
}

// Verify reports whether one of the keys has signed the code.
func Verify(keys []ed25519.PublicKey, c Code, signature []byte) bool {
	if c.check() != nil || len(signature) != ed25519.SignatureSize {
		return false
	}
	for _, key := range keys {
		if len(key) == ed25519.PublicKeySize && ed25519.Verify(key, c.text(), signature) {
			return true
		}
	}
	return false
}

// ParsePrivate reads a private key in PEM (PKCS #8). The error has nothing of the key.
func ParsePrivate(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("it is not a private key in PEM: make one with openssl genpkey -algorithm ed25519")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, errors.New("it is not an Ed25519 key: make one with openssl genpkey -algorithm ed25519")
	}
	return key, nil
}

// ParsePublic reads a public key: in PEM, the text of such a key in base64 without its
// first and last line, or its 32 bytes in base64.
func ParsePublic(text string) (ed25519.PublicKey, error) {
	var raw []byte
	if block, _ := pem.Decode([]byte(text)); block != nil && block.Type == "PUBLIC KEY" {
		raw = block.Bytes
	} else {
		raw, _ = base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	}
	if len(raw) == ed25519.PublicKeySize {
		return raw, nil
	}
	parsed, err := x509.ParsePKIXPublicKey(raw)
	key, ok := parsed.(ed25519.PublicKey)
	if err != nil || !ok {
		return nil, errors.New("it is not an Ed25519 public key: " +
			"want what openssl pkey -pubout writes, or 32 bytes in base64")
	}
	return key, nil
}
