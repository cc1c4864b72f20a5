package stop

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"golang.org/x/net/netutil"
)

// Four clients connect through a listener that accepts two connections at a time, and
// keep their connections open. The two clients that wait in the kernel are served before
// the listener closes. TestClientsBehindALimitAreServed in the root package has more
// cases, with a copy of netutil.LimitListener.
func TestLimitListenerLosesNone(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app, err := lifecycle.New(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: 400 * time.Millisecond, AcceptQuiet: 100 * time.Millisecond, Linger: 600 * time.Millisecond,
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)), lifecycle.WithSignals(nil))
	if err != nil {
		t.Fatal(err)
	}
	app.Serve("http", &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "served")
	})}, lifecycle.WithListener(netutil.LimitListener(tcp, 2)))
	var wg sync.WaitGroup
	app.Go("clients", func(context.Context) error {
		<-app.Reached(lifecycle.PhaseRunning)
		for range 4 {
			c, err := net.Dial("tcp", tcp.Addr().String())
			if err != nil {
				return err
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: test\r\n\r\n")
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Errorf("a request was lost: %v", err)
					return
				}
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
				_, _ = c.Read(make([]byte, 1)) // until the server closes
			})
		}
		app.Stop(nil)
		return nil
	})
	if err := app.Run(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
