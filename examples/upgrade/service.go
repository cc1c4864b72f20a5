package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/pleme-io/lifecycle-go"
)

// settings are what the service needs to know.
type settings struct {
	HTTPAddr, HealthAddr string
	PIDFile              string
	Broken               string // a file: while it exists, a new process is one of a broken release
	Token                string
}

// serve is the service. It replaces its process by a new one on SIGUSR2, and for POST
// /admin/upgrade.
func serve(s settings) error {
	if _, err := os.Stat(s.Broken); err == nil {
		return errors.New("this release is broken")
	}
	app, err := lifecycle.New(lifecycle.Config{
		HealthAddr:    s.HealthAddr,
		AdminToken:    lifecycle.Secret(s.Token),
		UpgradeSignal: "SIGUSR2",
	})
	if err != nil {
		return err
	}
	app.Serve("http", &http.Server{
		Addr: s.HTTPAddr,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "process %d", os.Getpid())
		}),
	})
	// The file names one process: the old one removes it, and the new one writes it.
	app.Exclusive("pid file",
		func(context.Context) error { return os.WriteFile(s.PIDFile, []byte(strconv.Itoa(os.Getpid())), 0o600) },
		func(context.Context) error {
			if err := os.Remove(s.PIDFile); !errors.Is(err, os.ErrNotExist) { // an operator may have removed it
				return err
			}
			return nil
		})
	return app.Run(context.Background())
}
