package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
)

// frame returns an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload string) string {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return string(binary.BigEndian.AppendUint32(head, stream)) + payload
}

// frames is a connection without cost whose peer speaks HTTP/2 without TLS. It keeps a
// number of streams open until n requests are sent, and discards the responses.
type frames struct {
	script
	mu      sync.Mutex // guards everything below
	changed *sync.Cond
	out     []byte // what Read returns next
	in      []byte // the beginning of a frame, of what was written
	left    int    // requests that are not sent
	open    int    // streams
	streams int    // at most
	last    uint32 // the newest stream
}

func newFrames(n, streams int) *frames {
	const settings, settingsAck = 4, 1
	const windowUpdate = 8
	begin := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(settings, 0, 0, "") + frame(settings, settingsAck, 0, "") +
		frame(windowUpdate, 0, 0, "\x7f\xff\x00\x00")
	f := &frames{
		script:  script{closed: make(chan struct{})},
		out:     []byte(begin),
		left:    n,
		streams: streams,
	}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// Read sends a request for each stream that may be opened, and waits while none may.
func (f *frames) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.out) == 0 {
		switch {
		case f.left == 0 && f.open == 0:
			return 0, io.EOF
		case f.left == 0 || f.open == f.streams:
			f.changed.Wait()
		default:
			f.request()
		}
	}
	n := copy(p, f.out)
	f.out = f.out[n:]
	return n, nil
}

// request opens streams, as many as may be open. The caller holds the lock.
func (f *frames) request() {
	const headers, endsStreamAndHeaders = 1, 5
	for f.left > 0 && f.open < f.streams {
		stream := 2*f.last + 1
		f.last++
		f.left--
		f.open++
		f.out = append(f.out, frame(headers, endsStreamAndHeaders, stream, "\x82\x86\x84\x41\x04test")...)
	}
}

// Write counts the responses: a frame with END_STREAM ends each.
func (f *frames) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.written += len(p)
	f.in = append(f.in, p...)
	rest := f.in
	for len(rest) >= 9 {
		end := 9 + int(rest[0])<<16 + int(rest[1])<<8 + int(rest[2])
		if len(rest) < end {
			break
		}
		if kind := rest[3]; kind <= 1 && rest[4]&1 != 0 { // DATA or HEADERS
			f.open--
		}
		rest = rest[end:]
	}
	f.in = f.in[:copy(f.in, rest)]
	f.changed.Broadcast()
	return len(p), nil
}

func (f *frames) Close() error {
	f.changed.Broadcast()
	return f.script.Close()
}

// BenchmarkHTTP2 measures a request of HTTP/2 over a connection without cost, with this
// many streams at a time.
func BenchmarkHTTP2(b *testing.B) {
	for _, streams := range []int{1, 20, 100} {
		for _, s := range servers {
			b.Run(fmt.Sprintf("streams=%d/peer=%s", streams, s.peer), func(b *testing.B) {
				h := new(counting)
				ln := newListener()
				srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
				srv.Protocols.SetUnencryptedHTTP2(true)
				defer s.serve(b, ln, srv)()
				nc := newFrames(b.N, streams)
				b.ReportAllocs()
				b.ResetTimer()
				report := cpu.Measure(b)
				ln.offer <- nc
				<-nc.closed
				b.StopTimer()
				report()
				if n := h.served.Load(); n != int64(b.N) {
					b.Fatalf("%d requests were served, want %d", n, b.N)
				}
			})
		}
	}
}

// exchange is one kind of work, over the loopback, with this program's own client.
type exchange struct {
	name    string
	tls     bool
	http2   bool
	workers int
	handler func(tb testing.TB) http.Handler
	do      func(client *http.Client, url string) error
}

func get(client *http.Client, url string) error {
	res, err := client.Get(url)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

const uploadSize = 1 << 20

func exchanges() []exchange {
	hello := func(testing.TB) http.Handler { return new(counting) }
	return []exchange{
		{name: "http1-tls", tls: true, workers: 20, handler: hello, do: get},
		{name: "http2-tls", tls: true, http2: true, workers: 20, handler: hello, do: get},
		{name: "http2-tls-1", tls: true, http2: true, workers: 1, handler: hello, do: get},
		{name: "sendfile-10MB", workers: 1, do: get, handler: func(tb testing.TB) http.Handler {
			name := filepath.Join(tb.TempDir(), "file")
			if err := os.WriteFile(name, make([]byte, 10<<20), 0o600); err != nil {
				tb.Fatal(err)
			}
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) })
		}},
		{name: "upload-1MB", workers: 1, handler: func(testing.TB) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n, err := io.Copy(io.Discard, r.Body); n != uploadSize || err != nil {
					http.Error(w, fmt.Sprint(n, err), http.StatusBadRequest)
				}
			})
		}, do: func(client *http.Client, url string) error {
			res, err := client.Post(url, "application/octet-stream", io.LimitReader(zeros{}, uploadSize))
			if err != nil {
				return err
			}
			res.Body.Close()
			if res.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", res.StatusCode)
			}
			return nil
		}},
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// BenchmarkServe measures whole exchanges. The client's share is in the numbers of both
// peers.
func BenchmarkServe(b *testing.B) {
	certificate := selfSigned(b)
	for _, x := range exchanges() {
		for _, s := range servers {
			b.Run("kind="+x.name+"/peer="+s.peer, func(b *testing.B) {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				srv := &http.Server{Handler: x.handler(b), ErrorLog: log.New(io.Discard, "", 0)}
				transport := &http.Transport{MaxIdleConnsPerHost: x.workers, ForceAttemptHTTP2: x.http2}
				url := "http://" + ln.Addr().String()
				if x.tls {
					url = strings.Replace(url, "http", "https", 1)
					srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
					transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
				}
				defer s.serve(b, ln, srv)()
				client := &http.Client{Transport: transport}
				defer client.CloseIdleConnections()
				if err := x.do(client, url); err != nil {
					b.Fatal(err)
				}
				measure(b, x.workers, func() error { return x.do(client, url) })
			})
		}
	}
}

// measure lets workers do b.N exchanges, each worker one after the other.
func measure(b *testing.B, workers int, do func() error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	report := cpu.Measure(b)
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := do(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	report()
}

// BenchmarkWebsocket measures a message that goes to the server and back on a connection
// that its handler has taken over.
func BenchmarkWebsocket(b *testing.B) {
	for _, s := range servers {
		b.Run("peer="+s.peer, func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			echo := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				nc, rw, err := http.NewResponseController(w).Hijack()
				if err != nil {
					b.Error(err)
					return
				}
				defer nc.Close()
				_, _ = io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
				_, _ = io.Copy(nc, rw)
			})
			defer s.serve(b, ln, &http.Server{Handler: echo})()
			nc, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer nc.Close()
			const answer = "HTTP/1.1 101 Switching Protocols\r\n\r\n"
			_, _ = io.WriteString(nc, "GET / HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if _, err := io.ReadFull(nc, make([]byte, len(answer))); err != nil {
				b.Fatal(err)
			}
			message := make([]byte, 100)
			b.ReportAllocs()
			b.ResetTimer()
			report := cpu.Measure(b)
			for range b.N {
				if _, err := nc.Write(message); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(nc, message); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			report()
		})
	}
}

func selfSigned(tb testing.TB) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
