// Command upgrade shows a service that replaces its own process without a lost request. Run
// it:
//
//	go run ./examples/upgrade
//
// It starts the service of service.go and sends it requests without a pause. Three times it
// asks for an upgrade: a new process takes over the sockets, and the old one drains and ends.
// The fourth new process is of a broken release and ends, and the third one serves on. At the end
// it says how many requests were lost.
//
// It needs Linux, and no setup.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// settingsVar has the settings of the service, as JSON.
const settingsVar = "UPGRADE_EXAMPLE"

func main() {
	lifecycle.Main(func() error {
		text, isService := os.LookupEnv(settingsVar)
		if !isService {
			ctx, stop := lifecycle.SignalContext(context.Background())
			defer stop()
			return show(ctx, os.Stdout)
		}
		var s settings
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return err
		}
		return serve(s)
	})
}

// show runs the service and replaces its process.
func show(ctx context.Context, out io.Writer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := settings{
		PIDFile: filepath.Join(dir, "pid"),
		Broken:  filepath.Join(dir, "broken"),
		Token:   "a-token-for-the-example",
	}
	for _, addr := range []*string{&s.HTTPAddr, &s.HealthAddr} {
		if *addr, err = freeAddr(); err != nil {
			return err
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end(ctx)) }()
	fmt.Fprintf(out, "process %d serves\n", s.pid())

	stop := s.load(ctx)
	for range 3 {
		answer, err := s.upgrade(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, answer)
	}
	if err := os.WriteFile(s.Broken, nil, 0o600); err != nil {
		return err
	}
	answer, err := s.upgrade(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, answer)
	answered, lost := stop()
	fmt.Fprintf(out, "process %d serves; %d requests were answered, %d lost\n", s.pid(), answered, lost)
	return nil
}

// freeAddr returns an address that no process listens on.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// start starts the first process and waits until it serves.
func (s settings) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), settingsVar+"="+string(text))
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it ends when the next one serves
	return await(ctx, func() bool { return s.pid() != 0 })
}

// await waits until a condition holds.
func await(ctx context.Context, holds func() bool) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("the service: %w", ctx.Err())
		}
	}
	return nil
}

// pid returns the process that serves, 0 for none.
func (s settings) pid() int {
	text, _ := os.ReadFile(s.PIDFile) // it is missing before the first process serves
	pid, _ := strconv.Atoi(string(text))
	return pid
}

// upgrade asks the service to replace its process, and returns its answer.
func (s settings) upgrade(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.HealthAddr+"/admin/upgrade", nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	req.Close = true // the next request is for the next process
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(answer)), err
}

// load sends requests until stop is called, on new connections and on one that is kept.
func (s settings) load(ctx context.Context) (stop func() (answered, lost int64)) {
	quit := make(chan struct{})
	var clients sync.WaitGroup
	var answered, lost atomic.Int64
	for _, keep := range []bool{true, false} {
		clients.Go(func() {
			tr := &http.Transport{DisableKeepAlives: !keep}
			defer tr.CloseIdleConnections()
			for {
				select {
				case <-quit:
					return
				case <-time.After(time.Millisecond):
				}
				if post(ctx, &http.Client{Transport: tr}, "http://"+s.HTTPAddr) != nil {
					lost.Add(1)
				} else {
					answered.Add(1)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(quit)
		clients.Wait()
		return answered.Load(), lost.Load()
	}
}

// post sends one request. net/http does not send it again, because it cannot rewind the body.
func post(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, io.MultiReader(strings.NewReader("an order")))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// end stops the process that serves, and waits until it has given its file away.
func (s settings) end(ctx context.Context) error {
	pid := s.pid()
	if pid == 0 {
		return nil
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return await(context.WithoutCancel(ctx), func() bool { return s.pid() == 0 })
}
