package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver, in pure Go
)

// store keeps the work in SQLite.
type store struct {
	db   *sql.DB
	temp string // a folder to remove at the end, "" when the file is the user's
}

// openStore opens the database file, and creates it when it does not exist. An
// empty name stands for a temporary one, which Close removes.
func openStore(file string) (*store, error) {
	s := &store{}
	if file == "" {
		temp, err := os.MkdirTemp("", "lifecycle-service-")
		if err != nil {
			return nil, fmt.Errorf("make a temporary database: %w", err)
		}
		s.temp, file = temp, filepath.Join(temp, "service.db")
	}
	if err := s.open(file); err != nil {
		return nil, errors.Join(fmt.Errorf("open database %s: %w", file, err), s.Close())
	}
	return s, nil
}

func (s *store) open(file string) error {
	dsn, err := dataSource(file)
	if err != nil {
		return err
	}
	if s.db, err = sql.Open("sqlite", dsn); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(4)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = s.db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS work (
		id   INTEGER PRIMARY KEY,
		note TEXT    NOT NULL,
		done INTEGER NOT NULL DEFAULT 0
	)`)
	return err
}

// dataSource names the file as a URI, so that any path works. It sets options for a
// service: a write-ahead log, so that a killed process loses
// no acknowledged write, and waiting instead of "database is locked".
func dataSource(file string) (string, error) {
	file, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	file = filepath.ToSlash(file)
	if !strings.HasPrefix(file, "/") {
		file = "/" + file // C:/data
	}
	query := url.Values{"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
	return (&url.URL{Scheme: "file", Path: file, RawQuery: query.Encode()}).String(), nil
}

// Ping reports whether the database answers. It is the readiness probe.
func (s *store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Add stores one piece of work and returns its number. It is durable then.
func (s *store) Add(ctx context.Context, note string) (id int64, err error) {
	err = s.db.QueryRowContext(ctx, `INSERT INTO work (note) VALUES (?) RETURNING id`, note).Scan(&id)
	if err != nil {
		return 0, fmt.Errorf("store work: %w", err)
	}
	return id, nil
}

// Finish does waiting work, at most limit pieces, and returns their
// numbers.
func (s *store) Finish(ctx context.Context, limit int) (ids []int64, err error) {
	rows, err := s.db.QueryContext(ctx,
		`UPDATE work SET done = 1 WHERE id IN (SELECT id FROM work WHERE done = 0 ORDER BY id LIMIT ?) RETURNING id`, limit)
	if err != nil {
		return nil, fmt.Errorf("finish work: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("finish work: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// Count returns the number of pieces of work, and how many are done.
func (s *store) Count(ctx context.Context) (added, done int64, err error) {
	err = s.db.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(done), 0) FROM work`).Scan(&added, &done)
	if err != nil {
		return 0, 0, fmt.Errorf("count work: %w", err)
	}
	return added, done, nil
}

// Close closes the database, and removes it when it is a temporary one.
func (s *store) Close() error {
	var errs []error
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	if s.temp != "" {
		errs = append(errs, os.RemoveAll(s.temp))
	}
	return errors.Join(errs...)
}
