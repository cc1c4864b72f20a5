package clients

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bench has what all measurements share: the programs that were built for them, and the
// certificates.
type bench struct {
	server         string // the program of folder server
	output         string // folder for what servers and proxies write
	testdata, temp string
}

// newBench builds the programs that are written in Go, and makes the certificates.
func newBench(t *testing.T) *bench {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		server:   *serverFlag,
		output:   *outputFlag,
		testdata: filepath.Join(dir, "testdata"),
		temp:     t.TempDir(),
	}
	if b.output == "" {
		b.output = filepath.Join(b.temp, "output")
	}
	if err := os.MkdirAll(b.output, 0o755); err != nil {
		t.Fatal(err)
	}
	if b.server == "" {
		b.server = filepath.Join(b.temp, "server")
		build(t, b.server, "./server")
	}
	build(t, filepath.Join(b.temp, "goclient"), "./testdata/go")
	if err := b.certificates(); err != nil {
		t.Fatal(err)
	}
	return b
}

func build(t *testing.T, program, pkg string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %s", pkg, err, out)
	}
}

// paths replaces TESTDATA and TEMP.
func (b *bench) paths(args []string) []string {
	replace := strings.NewReplacer("TESTDATA/", b.testdata+"/", "TEMP/", b.temp+"/")
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = replace.Replace(arg)
	}
	return out
}

// certificates writes ca.pem, the certificate of an authority, and server.pem, the
// certificate of the servers with its key.
func (b *bench) certificates() error {
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority of the clients' servers"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    ca.NotBefore,
		NotAfter:     ca.NotAfter,
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, &serverKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(serverKey)
	if err != nil {
		return err
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	serverPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverDER})
	serverPEM = append(serverPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})...)
	if err := os.WriteFile(filepath.Join(b.temp, "ca.pem"), caPEM, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.temp, "server.pem"), serverPEM, 0o644)
}

// group makes cmd the first of a process group, which killGroup ends as a whole.
func group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return killGroup(cmd) }
}

// killGroup ends cmd and every process that it has started and that still runs.
func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
