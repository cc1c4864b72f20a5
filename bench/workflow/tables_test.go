package workflow

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// BenchmarkTable keeps missions in a table of SQLite and of Postgres, as a service with
// one database would: a transition reads the row, checks the edge, and updates the row
// where its phase is still the one that was read, with an entry in a table of
// transitions, in one transaction. Compare its wall-clock time with the peers of
// BenchmarkWorkflow; Postgres works in processes of its own.
func BenchmarkTable(b *testing.B) {
	for _, mode := range []string{"interval", "always"} {
		for _, writers := range []int{1, 16, 64} {
			for name, open := range map[string]func(*testing.B, string) *sql.DB{"sqlite": sqlite, "postgres": postgres} {
				b.Run(fmt.Sprintf("op=Transition/sync=%s/writers=%d/peer=%s", mode, writers, name), func(b *testing.B) {
					ctx := context.Background()
					db := open(b, mode)
					defer db.Close()
					for _, q := range []string{
						`CREATE TABLE missions (id TEXT PRIMARY KEY, phase TEXT NOT NULL, org TEXT NOT NULL, record TEXT NOT NULL)`,
						`CREATE TABLE transitions (id TEXT NOT NULL, was TEXT NOT NULL, phase TEXT NOT NULL, source TEXT NOT NULL, at TEXT NOT NULL)`,
						`CREATE INDEX missions_phase ON missions (phase)`,
					} {
						if _, err := db.ExecContext(ctx, q); err != nil {
							b.Fatal(err)
						}
					}
					for w := range writers {
						m := mission{ID: fmt.Sprintf("m%d", w), State: "flying", Area: area}
						data, _ := json.Marshal(&m)
						if _, err := db.ExecContext(ctx, `INSERT INTO missions VALUES ($1, $2, $3, $4)`, m.ID, m.State, m.Org, string(data)); err != nil {
							b.Fatal(err)
						}
					}
					turns := make([]int, writers)
					spread(b, writers, func(w, _ int) error {
						turns[w]++
						return rowTransition(ctx, db, fmt.Sprintf("m%d", w), []string{"flying", "capturing"}[turns[w]%2])
					})
				})
			}
		}
	}
}

func rowTransition(ctx context.Context, db *sql.DB, id, to string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	var m mission
	var data string
	if err := tx.QueryRowContext(ctx, `SELECT record FROM missions WHERE id = $1`, id).Scan(&data); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return err
	}
	from := m.State
	m.State = to
	next, err := json.Marshal(&m)
	if err != nil {
		return err
	}
	done, err := tx.ExecContext(ctx, `UPDATE missions SET phase = $1, record = $2 WHERE id = $3 AND phase = $4`, to, string(next), id, from)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%d rows: %w", n, err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO transitions VALUES ($1, $2, $3, $4, $5)`, id, from, to, "rule", time.Now().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	return tx.Commit()
}

// sqlite opens a database file. SQLite has one writer at a time: one connection is
// faster than many that wait for its lock.
func sqlite(b *testing.B, mode string) *sql.DB {
	level := map[string]string{"interval": "NORMAL", "always": "FULL"}[mode]
	db, err := sql.Open("sqlite", "file:"+filepath.Join(b.TempDir(), "missions.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+level+")&_txlock=immediate")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// postgres starts a server of its own on a socket in a folder. It skips where there is
// none, such as where Debian's package postgresql is missing.
func postgres(b *testing.B, mode string) *sql.DB {
	bin := ""
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		bin = filepath.Dir(found[len(found)-1])
	} else {
		b.Skip("there is no Postgres: install the package postgresql")
	}
	dir, err := os.MkdirTemp("", "pg")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := &syscall.SysProcAttr{}
	if os.Getuid() == 0 { // Postgres refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			b.Skip("there is no user postgres: ", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			b.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "bench")
	create.SysProcAttr, create.Dir = as, dir
	if out, err := create.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	durable := map[string]string{"interval": "off", "always": "on"}[mode]
	server := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "synchronous_commit="+durable)
	server.SysProcAttr, server.Dir = as, dir
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGINT) // fast shutdown
		_ = server.Wait()
	})
	db, err := sql.Open("pgx", "host="+dir+" user=bench database=postgres")
	if err != nil {
		b.Fatal(err)
	}
	db.SetMaxOpenConns(64)
	db.SetMaxIdleConns(64)
	for end := time.Now().Add(time.Minute); db.Ping() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("Postgres does not answer")
		}
	}
	return db
}
