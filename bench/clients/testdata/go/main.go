// Command go is a client of net/http or grpc-go.
//
//	usage: go CLIENT URL WORKERS SECONDS PAUSE_MS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

type result struct {
	Sent   int                `json:"sent"`
	Failed int                `json:"failed"`
	Errors map[string]int     `json:"errors"`
	At     map[string][]int64 `json:"at"`
	Note   string             `json:"note"`

	mu   sync.Mutex
	open int
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 5 {
		return fmt.Errorf("usage: go CLIENT URL WORKERS SECONDS PAUSE_MS")
	}
	kind, address := args[0], args[1]
	workers, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(args[3], 64)
	if err != nil {
		return err
	}
	pause, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	send, err := sender(kind, address)
	if err != nil {
		return err
	}
	r := &result{Errors: map[string]int{}, At: map[string][]int64{}, Note: runtime.Version()}
	if kind == "grpc" {
		r.Note = "grpc-go " + grpc.Version
	}
	r.load(send, workers, time.Duration(seconds*float64(time.Second)), time.Duration(pause)*time.Millisecond)
	return json.NewEncoder(os.Stdout).Encode(r)
}

func (r *result) load(send func(post bool) error, workers int, length, pause time.Duration) {
	began := time.Now()
	fmt.Println("began")
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for post := i%2 == 1; time.Since(began) < length; post = !post {
				r.count(1)
				err := send(post)
				r.count(-1)
				if err != nil {
					r.fail(err.Error(), began)
					time.Sleep(20 * time.Millisecond)
				}
				time.Sleep(rand.N(pause + 1))
			}
		})
	}
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(length + 8*time.Second):
	}
	for range r.open {
		r.fail("no answer", began)
	}
}

func (r *result) count(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
	r.Sent += max(n, 0)
}

var numbers = regexp.MustCompile(`127\.0\.0\.1:\d+`)

func (r *result) fail(text string, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text = numbers.ReplaceAllString(text, "ADDR")
	r.At[text] = append(r.At[text], time.Since(began).Milliseconds())
	r.Failed++
	r.Errors[text]++
}

// once is a body that the client cannot send twice: net/http sets no GetBody for it.
type once struct{ io.Reader }

func sender(kind, address string) (func(post bool) error, error) {
	if kind == "grpc" {
		return rpc(address)
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 100, // the default of 2 would open a connection for most requests
		Protocols:           new(http.Protocols),
	}
	switch {
	case kind == "h1":
		transport.Protocols.SetHTTP1(true)
	case kind == "h2" && strings.HasPrefix(address, "http:"):
		transport.Protocols.SetUnencryptedHTTP2(true)
	case kind == "h2":
		transport.Protocols.SetHTTP2(true)
	default:
		return nil, fmt.Errorf("unknown client %q", kind)
	}
	client := &http.Client{Transport: transport}
	body := strings.Repeat("x", 100)
	return func(post bool) error {
		var res *http.Response
		var err error
		if post {
			res, err = client.Post(address, "text/plain", once{strings.NewReader(body)})
		} else {
			res, err = client.Get(address)
		}
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return fmt.Errorf("read the body: %w", err)
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", res.StatusCode)
		}
		return nil
	}, nil
}

func rpc(address string) (func(post bool) error, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "https" {
		if creds, err = credentials.NewClientTLSFromFile(os.Getenv("SSL_CERT_FILE"), ""); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient(u.Host, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	return func(bool) error {
		return conn.Invoke(context.Background(), "/bench.Echo/Call", new(wrapperspb.BytesValue), new(wrapperspb.BytesValue))
	}, nil
}
