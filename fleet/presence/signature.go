package presence

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A sealed message is a line with the mark, the signer's public key and the signature
// (Ed25519, RFC 8032), and then the body. The signature covers the body as it is sent, so
// no canonical form of JSON is needed. It also covers a purpose, such as "command" and a
// subject: a message that was sealed for one purpose does not open for another.
const sealMark = "lifecycle1"

// Errors of unseal.
var (
	errUnsigned = errors.New("it has no signature")
	errForged   = errors.New("its signature does not hold")
)

func seal(key ed25519.PrivateKey, purpose string, body []byte) []byte {
	var b bytes.Buffer
	encode := base64.RawURLEncoding.EncodeToString
	fmt.Fprintf(&b, "%s %s %s\n", sealMark, encode(publicOf(key)), encode(ed25519.Sign(key, signed(purpose, body))))
	b.Write(body)
	return b.Bytes()
}

// sealing is how many bytes seal adds to a body.
const sealing = len(sealMark) + 1 + 43 + 1 + 86 + 1

// unseal returns the body of a sealed message and the key that has signed it. The caller
// decides whether it trusts the key.
func unseal(purpose string, message []byte) (key ed25519.PublicKey, body []byte, err error) {
	line, body, _ := bytes.Cut(message, []byte("\n"))
	if !bytes.HasPrefix(line, []byte(sealMark+" ")) {
		return nil, nil, errUnsigned
	}
	parts := strings.SplitN(string(line), " ", 3)
	if len(parts) != 3 || len(line) != sealing-1 {
		return nil, nil, errForged
	}
	encoding := base64.RawURLEncoding.Strict()
	key, err = encoding.DecodeString(parts[1])
	signature, wrong := encoding.DecodeString(parts[2])
	isKey := err == nil && wrong == nil && len(key) == ed25519.PublicKeySize
	if !isKey || !ed25519.Verify(key, signed(purpose, body), signature) {
		return nil, nil, errForged
	}
	return key, body, nil
}

func signed(purpose string, body []byte) []byte {
	return append([]byte("lifecycle-go presence\n"+purpose+"\n"), body...)
}

// publicOf returns the public half of a key, which a PrivateKey ends with.
func publicOf(key ed25519.PrivateKey) ed25519.PublicKey {
	return ed25519.PublicKey(key[ed25519.SeedSize:])
}

// fingerprint names a public key in logs, errors and commands: the first 128 bits of its
// SHA-256.
func fingerprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256(key)
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

func readPEM(name string) (blocks []*pem.Block, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		blocks, text = append(blocks, block), rest
	}
	if len(bytes.TrimSpace(text)) > 0 {
		return nil, fmt.Errorf("%s has text that is not PEM", name)
	}
	return blocks, nil
}

// readKey reads an operator's private key: PKCS #8 in PEM, as
// "openssl genpkey -algorithm ed25519" writes it.
func readKey(name string) (ed25519.PrivateKey, error) {
	blocks, err := readPEM(name)
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 || blocks[0].Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s: want one block PRIVATE KEY, as openssl genpkey -algorithm ed25519 writes it", name)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(blocks[0].Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: the private key is not valid PKCS #8", name) // the error may quote the key
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s: the key is a %T, want Ed25519", name, parsed)
	}
	return key, nil
}

// readOperators reads the operators' public keys: one or more blocks PUBLIC KEY in PEM,
// as "openssl pkey -pubout" writes them.
func readOperators(name string) (keys []ed25519.PublicKey, err error) {
	blocks, err := readPEM(name)
	if err != nil {
		return nil, err
	}
	for i, block := range blocks {
		if block.Type != "PUBLIC KEY" {
			return nil, fmt.Errorf("%s: block %d is a %.40q, want PUBLIC KEY, as openssl pkey -pubout writes it",
				name, i+1, block.Type)
		}
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: block %d: %w", name, i+1, err)
		}
		key, ok := parsed.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("%s: the key of block %d is a %T, want Ed25519", name, i+1, parsed)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no key", name)
	}
	return keys, nil
}
