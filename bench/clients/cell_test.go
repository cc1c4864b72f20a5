package clients

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// warm is the time from the beginning of the load to SIGTERM.
const warm = 2 * time.Second

// defaultLoad is the load of each cell: it goes on for some seconds after both kinds of
// server have ended.
var defaultLoad = Load{Workers: 20, Length: warm + 14*time.Second, Pause: 100 * time.Millisecond}

// Scenario is what happens while a client sends requests.
type Scenario struct {
	Name string
	// Alone: there is no other server. Clients that come after the stop are refused.
	Alone bool
	// Lag is the time from SIGTERM until the balancer sends new connections to the other server.
	Lag time.Duration
	// Proxy is in front of both servers, in place of the balancer.
	Proxy *Proxy
}

// Scenarios returns one server alone, and two behind a balancer that notices late.
func Scenarios(long bool) []Scenario {
	all := []Scenario{{Name: "alone", Alone: true}}
	lags := []time.Duration{700 * time.Millisecond, 2 * time.Second, 4 * time.Second}
	if long {
		lags = append([]time.Duration{0}, append(lags, 10*time.Second)...)
	}
	for _, lag := range lags {
		all = append(all, Scenario{Name: fmt.Sprintf("lag %v", lag), Lag: lag})
	}
	return all
}

// Cell is one measurement.
type Cell struct {
	Client   Client
	Scenario Scenario
	Server   string // Ours or Sleep
	Load     Load
	missing  string
}

// Name is CLIENT/SCENARIO/SERVER.
func (c Cell) Name() string { return c.result().Name() }

// result returns the result before the measurement.
func (c Cell) result() Result {
	r := Result{Client: c.Client.Name, Scenario: c.Scenario.Name, Server: c.Server, Proxy: c.Scenario.Proxy != nil, Missing: c.missing}
	if r.Missing == "" {
		r.Missing = "its measurement did not end"
	}
	return r
}

// whyMissing returns why the cell cannot be measured here, or "".
func (c Cell) whyMissing(b *bench) string {
	if p := c.Scenario.Proxy; p != nil && p.Missing() != "" {
		return p.Missing()
	}
	return c.Client.Missing(b)
}

// Cells returns every pair of a client and a scenario, without the server and the load. long
// adds scenarios.
func Cells(long bool) (all []Cell) {
	for _, c := range All() {
		for _, s := range Scenarios(long) {
			if !c.ProxyOnly {
				all = append(all, Cell{Client: c, Scenario: s})
			}
		}
	}
	for _, p := range Proxies() {
		for _, c := range All() {
			if p.clients(c) {
				all = append(all, Cell{Client: c, Scenario: p.Scenario()})
			}
		}
	}
	return all
}

// Run measures.
func (c Cell) Run(ctx context.Context, b *bench) (Result, error) {
	res := c.result()
	res.Missing = ""
	name := fileName(c.Client.Name + "-" + c.Scenario.Name + "-" + c.Server)
	old, err := b.startServer(c.Server, name, c.Client.TLS, c.Client.GRPC)
	if err != nil {
		return res, err
	}
	defer old.kill()
	if c.Scenario.Alone {
		err = c.measure(ctx, b, &res, old, old.Addr, old.terminate)
		return res, err
	}
	next, err := b.startServer(c.Server, name+"-new", c.Client.TLS, c.Client.GRPC)
	if err != nil {
		return res, err
	}
	defer next.kill()
	if c.Scenario.Proxy != nil {
		err = c.runBehindProxy(ctx, b, &res, name, old, next)
		return res, err
	}
	lb, err := newBalancer(old.Addr)
	if err != nil {
		return res, err
	}
	defer lb.close()
	replace := func() error { return lb.replace(old, next, c.Scenario.Lag) }
	if err := c.measure(ctx, b, &res, old, lb.addr, replace); err != nil {
		return res, err
	}
	late, reset := lb.counts()
	reset = min(reset, res.Lost)
	res.Late, res.Lost, res.Refused, res.Sent = late, res.Lost-reset, res.Refused+reset, res.Sent-reset
	return res, nil
}

// runBehindProxy measures with a proxy in front of both servers.
func (c Cell) runBehindProxy(ctx context.Context, b *bench, res *Result, name string, old, next *server) error {
	p, err := b.startProxy(ctx, *c.Scenario.Proxy, name, old, next)
	if err != nil {
		return err
	}
	defer p.close()
	reached := make(chan int64, 1)
	go func() {
		<-old.ended
		reached <- p.logSize()
	}()
	if err := c.measure(ctx, b, res, old, p.addr, old.terminate); err != nil {
		return err
	}
	reasons, refused, err := p.reasons(<-reached)
	if err != nil {
		return err
	}
	res.ProxyErrors = reasons
	refused = min(refused, res.Lost)
	res.Lost, res.Refused, res.Sent = res.Lost-refused, res.Refused+refused, res.Sent-refused
	return nil
}

// measure has the client send requests to addr, and calls stop in the middle. old is the
// server that stop stops.
func (c Cell) measure(ctx context.Context, b *bench, res *Result, old *server, addr string, stop func() error) error {
	scheme := "http://"
	if c.Client.TLS {
		scheme = "https://"
	}
	var began, t0 time.Time
	stopped := make(chan error, 1)
	said, err := c.Client.run(ctx, b, scheme+addr+"/", c.Load, func() {
		began = time.Now()
		go func() {
			time.Sleep(warm)
			t0 = time.Now()
			stopped <- stop()
		}()
	})
	if err != nil {
		return err
	}
	if err := <-stopped; err != nil {
		return err
	}
	select {
	case <-old.ended:
	case <-time.After(30 * time.Second):
		return fmt.Errorf("the server %s did not end: see %s", old.Addr, old.log.Name())
	}
	last := c.Load.Length + time.Hour
	if c.Scenario.Alone || c.Scenario.Proxy != nil {
		last = old.at.Sub(began)
	}
	res.Took, res.Note = old.at.Sub(t0).Seconds(), said.Note
	res.Errors, res.Refused = said.split(last)
	res.Sent = said.Sent - res.Refused
	res.Lost = said.Failed - res.Refused
	return nil
}

// fileName makes a name that a file may have.
func fileName(text string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == ':' || r == '/' {
			return '_'
		}
		return r
	}, text)
}
