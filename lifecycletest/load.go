package lifecycletest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Load is clients that send requests until a load balancer would have noticed the stop.
// Make one with [App.Load] or [App.LoadFunc].
type Load struct {
	app     *App
	noticed chan struct{}  // closed when clients begin no further request
	first   sync.WaitGroup // the clients that have no answer yet
	clients sync.WaitGroup // the clients that have not ended
	over    chan struct{}  // closed when all have ended

	sent atomic.Int64
	mu   sync.Mutex // guards lost
	lost []error
}

// clientsEach is the number of clients for each request of a Load.
const clientsEach = 4

// pace is the pause of a client between two requests.
const pace = time.Millisecond

// Load sends requests to a server that was added with [lifecycle.App.Serve], over real
// connections, so not in a bubble. Each request is a method and a path, such as
// "POST /orders/{n}"; {n} stands for a number that is different in each. For each of
// them four clients send one request after the other: two keep their connection, and two
// open a new one each time. A client reads every answer to its end, so a stream of events
// is one request for as long as it lasts. A request is lost when it has no whole answer,
// or one with a status other than 2xx.
//
// Load returns when each client has the beginning of its first answer; then the test may
// stop the App. Clients begin no further request when half of DrainInterval is over, as
// if the load balancer had noticed by then, and close their connections.
func (a *App) Load(server string, requests ...string) *Load {
	a.t.Helper()
	addr, ok := a.Addr(server).(*net.TCPAddr)
	if !ok {
		a.fatal("no load: server %q has no TCP address; is the App running, and not in a bubble?", server)
	}
	var clients []client
	for _, request := range requests {
		method, path, found := strings.Cut(request, " ")
		if !found || !strings.HasPrefix(path, "/") {
			a.fatal("no load: %q is not a method and a path, such as \"GET /orders\"", request)
		}
		for i := range clientsEach {
			over := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 1}}
			clients = append(clients, client{end: over.CloseIdleConnections, send: func(ctx context.Context, n int, begun func()) error {
				url := "http://" + addr.String() + strings.ReplaceAll(path, "{n}", strconv.Itoa(n))
				return exchange(ctx, over, method, url, begun)
			}})
		}
	}
	return a.load(clients)
}

// LoadFunc is [App.Load] for another protocol: four clients call fn again and again, each
// time with another n, and a request is lost when fn returns an error. ctx ends with the
// test only. LoadFunc returns when each client has called fn once.
func (a *App) LoadFunc(fn func(ctx context.Context, n int) error) *Load {
	a.t.Helper()
	one := client{send: func(ctx context.Context, n int, _ func()) error { return fn(ctx, n) }, end: func() {}}
	return a.load(slices.Repeat([]client{one}, clientsEach))
}

// client sends one request after the other.
type client struct {
	send func(ctx context.Context, n int, begun func()) error // begun: the answer has begun
	end  func()
}

// load runs the clients, and waits for the first answer of each.
func (a *App) load(clients []client) *Load {
	a.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &Load{app: a, noticed: make(chan struct{}), over: make(chan struct{})}
	go l.notice(ctx)
	l.first.Add(len(clients))
	for _, c := range clients {
		l.clients.Go(func() {
			defer c.end()
			l.repeat(ctx, c.send)
		})
	}
	go func() {
		l.clients.Wait()
		close(l.over)
	}()
	a.t.Cleanup(func() {
		stop()
		<-l.over
		<-l.noticed
	})
	answered := make(chan struct{})
	go func() {
		l.first.Wait()
		close(answered)
	}()
	l.await(answered, "the first answers have not come")
	return l
}

// notice closes noticed when half of the window is over, or earlier with the App or the test.
func (l *Load) notice(ctx context.Context) {
	defer close(l.noticed)
	select {
	case <-l.app.Draining():
	case <-l.app.ended:
	case <-ctx.Done():
	}
	select {
	case <-time.After(max(l.app.Config().DrainInterval, 0) / 2):
	case <-l.app.ended:
	case <-ctx.Done():
	}
}

// repeat sends one request after the other. Each counts as the first until one has begun.
func (l *Load) repeat(ctx context.Context, send func(context.Context, int, func()) error) {
	var once sync.Once
	begun := func() { once.Do(l.first.Done) }
	defer begun()
	for {
		n := int(l.sent.Add(1))
		if err := send(ctx, n, begun); err != nil {
			l.mu.Lock()
			l.lost = append(l.lost, err)
			l.mu.Unlock()
		}
		begun()
		select {
		case <-time.After(pace):
		case <-l.noticed:
			return
		}
	}
}

// exchange sends a request and reads the answer to its end.
func exchange(ctx context.Context, client *http.Client, method, url string, begun func()) error {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	begun()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return fmt.Errorf("%s %s: the answer was cut: %w", method, url, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	return nil
}

// Wait waits until no client has a request any more, and returns how many were sent and
// how many of them were lost. The App has to stop first.
func (l *Load) Wait() (sent, lost int) {
	l.app.t.Helper()
	l.await(l.noticed, "the App has not been told to stop, so the clients go on")
	l.await(l.over, "requests have no answer yet")
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.sent.Load()), len(l.lost)
}

// WantNoneLost waits as [Load.Wait] does, and fails the test when a request was lost.
func (l *Load) WantNoneLost() {
	l.app.t.Helper()
	sent, lost := l.Wait()
	if lost > 0 {
		l.app.errorf("%d of %d requests were lost, the first ones:\n\t%v", lost, sent, errors.Join(l.lost[:min(lost, 5)]...))
	}
}

func (l *Load) await(done <-chan struct{}, what string) {
	l.app.t.Helper()
	select {
	case <-done:
	case <-time.After(l.app.patience()):
		l.app.fatal("load: %s after %v", what, l.app.patience())
	}
}
