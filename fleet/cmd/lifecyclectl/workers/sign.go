package workers

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func sign() *cobra.Command {
	var (
		files specFlags
		key   string
	)
	cmd := &cobra.Command{
		Use:   "sign",
		Short: "Sign the code of specs, for hosts that run only signed code",
		Long: `Sign the code of specs, for hosts that run only signed code. It needs no server. It
writes a line for each worker, with its id and the signature; apply and diff read
these lines with --signatures. A signature is for the code, its kind, the worker and
its tenant. It is not for the other fields of the spec. The key is an Ed25519 key in
PEM, as openssl genpkey -algorithm ed25519 makes it.`,
		Example: `  lifecyclectl workers sign --file workers.yaml --key code.key > workers.sig
  lifecyclectl workers apply --file workers.yaml --signatures workers.sig`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key == "" {
				return errors.New("which key? give --key FILE")
			}
			text, err := os.ReadFile(key)
			if err != nil {
				return fmt.Errorf("--key: %w", err)
			}
			private, err := codesign.ParsePrivate(text)
			if err != nil {
				return fmt.Errorf("--key: %s: %w", key, err)
			}
			specs, err := files.read(cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, s := range specs {
				signature, err := signatureOf(private, s)
				if err != nil {
					return err
				}
				line := fmt.Appendf(nil, "%s %s\n", s.GetId(), base64.StdEncoding.EncodeToString(signature))
				if err := output.Send(cmd.OutOrStdout(), line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&files.files, "file", "f", nil, "the specs, from this `file`; - is standard input; may be given more than once")
	cmd.Flags().StringVar(&key, "key", "", "the private key, from this `file`")
	return cmd
}

// signatureOf signs the code of a spec. Code at a URL has the digest that the spec names.
func signatureOf(key ed25519.PrivateKey, s *operatorv1.WorkerSpec) ([]byte, error) {
	digest := strings.ToLower(strings.TrimPrefix(s.GetCode().GetDigest(), "sha256:"))
	if s.GetCode().GetUrl() == "" {
		digest = codesign.DigestOf(s.GetCode().GetContent())
	}
	if digest == "" {
		return nil, fmt.Errorf("the code of %s is at a URL and has no digest: a signature is for one code", s.GetId())
	}
	return codesign.Sign(key, codesign.Code{
		Tenant:   s.GetTenant(),
		Worker:   s.GetId(),
		MIMEType: s.GetMimeType(),
		Digest:   digest,
	})
}

// addSignatures reads the lines of sign. A spec without a line keeps what it has.
func addSignatures(file string, specs []*operatorv1.WorkerSpec) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--signatures: %w", err)
	}
	found := map[string][]byte{}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		id, encoded, _ := strings.Cut(strings.TrimSpace(line), " ")
		signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		if err != nil || len(signature) != ed25519.SignatureSize {
			return fmt.Errorf("--signatures: %s:%d: want the id of a worker and its signature, as workers sign writes them", file, i+1)
		}
		found[id] = signature
	}
	for _, s := range specs {
		if signature := found[s.GetId()]; signature != nil && s.GetCode() != nil {
			s.Code.Signature = signature
		}
	}
	return nil
}
