package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is one process of the service.
type process struct {
	*lifecycle.App
	udp   net.Addr
	ended chan error
}

const quickly = 400 * time.Millisecond

func startProcess(t *testing.T, window time.Duration) *process {
	t.Helper()
	app, udp, err := newApp(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: window, AcceptQuiet: window / 4,
		Linger: 20 * time.Second, ShutdownGrace: time.Minute,
	}, "127.0.0.1:0", lifecycle.WithLogger(slog.New(slog.DiscardHandler)), lifecycle.WithSignals(nil))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{app, udp, make(chan error, 1)}
	go func() { p.ended <- app.Run(context.WithoutCancel(t.Context())) }()
	<-app.Reached(lifecycle.PhaseRunning)
	return p
}

// client returns a client that asks pick for a process each time that it connects.
func client(t *testing.T, pick func() net.Addr) *http.Client {
	t.Helper()
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, config *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, pick().String(), tlsConfig, config)
		},
	}
	t.Cleanup(func() { transport.Close() })
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// Clients with requests in flight all the time move from a process that stops to the
// next one, and lose none.
func TestNoRequestIsLostOverAStop(t *testing.T) {
	a, b := startProcess(t, 4*time.Second), startProcess(t, quickly) // clients on a busy machine move late
	var moved atomic.Bool
	pick := func() net.Addr {
		if moved.Load() {
			return b.udp
		}
		return a.udp
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sent atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		c := client(t, pick)
		for i := range 4 { // at once, on one connection
			wg.Go(func() {
				for ctx.Err() == nil {
					sent.Add(1)
					if err := ask(c, i%2 == 0); err != nil {
						t.Errorf("a request was lost: %v", err)
						return
					}
				}
			})
		}
	}
	for sent.Load() < 200 {
		time.Sleep(time.Millisecond)
	}
	time.AfterFunc(a.Config().DrainInterval/2, func() { moved.Store(true) }) // endpoints change late
	a.Stop(nil)
	if err := <-a.ended; err != nil {
		t.Errorf("the first process: %v", err)
	}
	for before := sent.Load(); sent.Load() < before+200 && !t.Failed(); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	wg.Wait()
	b.Stop(nil)
	if err := <-b.ended; err != nil {
		t.Errorf("the second process: %v", err)
	}
	t.Logf("%d requests", sent.Load())
}

// ask sends one request, with a body that can be sent again, or none.
func ask(c *http.Client, post bool) error {
	method, body := http.MethodGet, io.Reader(nil)
	if post {
		method, body = http.MethodPost, strings.NewReader(strings.Repeat("x", 2000))
	}
	req, err := http.NewRequest(method, "https://service.test/", body)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || string(text) != "hello over HTTP/3.0\n" {
		return fmt.Errorf("status %d, %q", resp.StatusCode, text)
	}
	return nil
}

// An endless stream says goodbye, and a request in flight is answered.
func TestStreamSaysGoodbye(t *testing.T) {
	p := startProcess(t, quickly)
	resp, err := client(t, func() net.Addr { return p.udp }).Get("https://service.test/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p.Stop(nil)
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(text), "event: goodbye\ndata:\n\n") {
		t.Errorf("got %q, %v", text, err)
	}
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}

// The answers over TCP offer HTTP/3.
func TestAnswersOfferHTTP3(t *testing.T) {
	p := startProcess(t, quickly)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	resp, err := (&http.Client{Transport: transport}).Get("https://" + p.Addr("https").String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	transport.CloseIdleConnections()
	if offer := resp.Header.Get("Alt-Svc"); !strings.Contains(offer, "h3=") {
		t.Errorf("Alt-Svc is %q", offer)
	}
	p.Stop(nil)
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
}
