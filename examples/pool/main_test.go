//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// free returns an address that was free a moment ago. Its port is none that the
// system gives to clients.
func free(t *testing.T) string {
	t.Helper()
	for range 1000 {
		if ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+rand.N(20_000))); err == nil {
			ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// service runs the program in this process, and stops it with the test.
func service(t *testing.T) (url, health string) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skipf("there is no Python on this machine: %v", err)
	}
	addr, admin := free(t), free(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-addr", addr, "-health", admin, "-drain-interval", "100ms", "-linger", "100ms"})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		res, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return "http://" + addr, "http://" + admin
			}
		}
		if time.Now().After(end) {
			t.Fatal("it is not ready:", err)
		}
	}
}

// picture returns a PPM that gets brighter or darker from left to right.
func picture(brighter bool) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "P6\n90 80\n255\n")
	for range 80 {
		for x := range 90 {
			v := byte(2 * x)
			if !brighter {
				v = byte(200 - 2*x)
			}
			b.Write([]byte{v, v, v})
		}
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func images(n int) string {
	var list []map[string]string
	for i := range n {
		list = append(list, map[string]string{"name": fmt.Sprint(i), "ppm": picture(i%2 == 0)})
	}
	b, _ := json.Marshal(map[string]any{"images": list})
	return string(b)
}

func post(url, body string) (status int, answer string, err error) {
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func TestAnswers(t *testing.T) {
	url, _ := service(t)
	if status, got, err := post(url+"/text", "The cat and the hat. THE END"); err != nil || status != 200 || got != `{"words":7,"distinct":5,"common":["the","cat","and"]}`+"\n" {
		t.Errorf("%d %s %v", status, got, err)
	}
	want := `{"name":"0","hash":"0000000000000000"}
{"name":"1","hash":"ffffffffffffffff"}
{"images":2}
`
	if status, got, err := post(url+"/images", images(2)); err != nil || status != 200 || got != want {
		t.Errorf("%d %s %v", status, got, err)
	}
	for body, want := range map[string]int{`{"images":[{"name":"x","ppm":"AAAA"}]}`: 422, `{`: 400} {
		if status, got, err := post(url+"/images", body); err != nil || status != want {
			t.Errorf("%s is %d %s %v, want %d", body, status, got, err, want)
		}
	}
}

// TestLargestTextsAreAnswered sends as much as the program allows, also in letters that JSON
// escapes, and one byte more.
func TestLargestTextsAreAnswered(t *testing.T) {
	url, _ := service(t)
	for _, letter := range []string{"x", "\"", "\x01"} {
		if status, got, err := post(url+"/text", strings.Repeat(letter, largest)); err != nil || status != 200 {
			t.Errorf("%q: %d %.200s %v", letter, status, got, err)
		}
	}
	if status, _, err := post(url+"/text", strings.Repeat("x", largest+1)); err != nil || status != 413 {
		t.Errorf("one byte more: %d %v", status, err)
	}
}

// TestNoRequestFailsWhileWorkersAreKilled kills one worker after the other, with
// SIGKILL, while clients send texts.
func TestNoRequestFailsWhileWorkersAreKilled(t *testing.T) {
	url, health := service(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var asked atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				status, got, err := post(url+"/text", strings.Repeat("so many words ", 200))
				if err != nil || status != 200 || !strings.HasPrefix(got, `{"words":600,`) {
					t.Errorf("%d %s %v", status, got, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	killed := map[int]bool{}
	for end := time.Now().Add(patience); len(killed) < 6 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for _, pid := range workers(t, health) {
			if !killed[pid] {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					continue // it has ended meanwhile
				}
				killed[pid] = true
				before := asked.Load()
				for asked.Load() < before+20 && ctx.Err() == nil && !t.Failed() && time.Now().Before(end) {
					time.Sleep(5 * time.Millisecond)
				}
				break
			}
		}
	}
	stop()
	clients.Wait()
	if len(killed) < 6 {
		t.Errorf("%d workers were killed", len(killed))
	}
	t.Logf("%d requests were answered while %d workers were killed", asked.Load(), len(killed))
}

// TestStreamHasALineForEachImage also expects the last line, with the result.
func TestStreamHasALineForEachImage(t *testing.T) {
	url, _ := service(t)
	res, err := http.Post(url+"/images", "application/json", strings.NewReader(images(100)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	n := 0
	for lines.Scan() {
		n++
	}
	if n != 101 || lines.Err() != nil {
		t.Errorf("%d lines, %v", n, lines.Err())
	}
}

// workers returns the process ids that /statusz shows.
func workers(t *testing.T, health string) (pids []int) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, health+"/statusz", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var status struct {
		Units []worker.State `json:"units"`
	}
	if err := json.NewDecoder(res.Body).Decode(&status); err != nil {
		t.Fatal(err)
	}
	for _, unit := range status.Units {
		for _, w := range unit.Children {
			if w.PID != 0 {
				pids = append(pids, w.PID)
			}
		}
	}
	return pids
}
