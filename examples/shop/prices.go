package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/sdk"
)

//go:embed price.py
var pricePy []byte

// prices asks the Python processes what a basket costs.
type prices struct{ pool *procpool.Pool }

// newPrices adds the pool. Its program is a part of this binary, and is written to a
// folder for Python.
func newPrices(app *lifecycle.App, cfg procpool.Config) (prices, error) {
	dir, err := os.MkdirTemp("", "shop-")
	if err != nil {
		return prices{}, err
	}
	app.OnShutdown("programs", func(context.Context) error { return os.RemoveAll(dir) })
	program := filepath.Join(dir, "price.py")
	err = errors.Join(
		os.WriteFile(program, pricePy, 0o600),
		os.WriteFile(filepath.Join(dir, "lifecycle_worker.py"), []byte(sdk.Python), 0o600),
	)
	if err != nil {
		return prices{}, err
	}
	cfg.Name = "prices"
	cfg.Command = func() *exec.Cmd { return exec.Command("python3", program) }
	pool, err := procpool.New(cfg)
	if err != nil {
		return prices{}, err
	}
	app.Add(pool).Probe("prices", lifecycle.ProbeFunc(func(ctx context.Context) error { return pool.Probe(ctx).Err }))
	return prices{pool}, nil
}

// of returns the price of a basket in cents. The pool asks another process when one
// dies: to ask twice does no harm.
func (p prices) of(ctx context.Context, basket Basket) (cents int, err error) {
	payload, err := json.Marshal(basket)
	if err != nil {
		return 0, err
	}
	answer, err := p.pool.Do(ctx, payload, procpool.Idempotent())
	if err != nil {
		return 0, err
	}
	return cents, json.Unmarshal(answer, &cents)
}
