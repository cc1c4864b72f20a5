// Command orders takes orders over HTTP and keeps them in SQLite.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	_ "modernc.org/sqlite" // the driver
)

type Config struct {
	Addr      string `usage:"serve HTTP on this address"`
	DB        string `usage:"the database file"`
	Lifecycle lifecycle.Config
}

func (Config) WithDefaults() Config { return Config{Addr: ":8080", DB: "orders.db"} }

func main() { lifecycle.Main(run) }

func run() error {
	cfg, err := config.Load[Config]("orders.yaml", config.WithOptionalFile()) // defaults < file < environment < flags
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+cfg.DB+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	if _, err := db.Exec("create table if not exists orders (id text primary key)"); err != nil {
		return fmt.Errorf("open the database %s: %w", cfg.DB, err)
	}
	app, err := lifecycle.New(cfg.Lifecycle)
	if err != nil {
		return err
	}
	app.Serve("http", &http.Server{Addr: cfg.Addr, Handler: routes(db)}).
		Probe("db", lifecycle.ProbeFunc(db.PingContext), lifecycle.WithCache(time.Second)).
		OnShutdown("db", func(context.Context) error { return db.Close() })
	return app.Run(context.Background())
}

func routes(db *sql.DB) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		if _, err := db.ExecContext(r.Context(), "insert or ignore into orders values (?)", r.PathValue("id")); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	return mux
}
