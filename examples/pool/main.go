// Command pool serves results of Python programs: perceptual hashes of images,
// one line of the answer for each as soon as it is ready, and statistics of texts.
//
//	go run ./examples/pool
//	curl -d 'the cat and the hat' localhost:8080/text
//	curl -d '{"images":[{"name":"a","ppm":"…"}]}' localhost:8080/images
//
// Kill any of the workers (kill -9, they are on localhost:9090/statusz) while it
// is under load: no request fails, since the pool may repeat the work.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/sdk"
)

//go:embed worker.py
var workerProgram []byte

func main() {
	lifecycle.Main(func() error { return run(context.Background(), os.Args[1:]) })
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("pool", flag.ContinueOnError)
	addr := flags.String("addr", "127.0.0.1:8080", "where to serve")
	health := flags.String("health", "127.0.0.1:9090", "where to serve the health planes and /statusz")
	drain := flags.Duration("drain-interval", 5*time.Second, "how long to go on serving after the signal to stop")
	linger := flags.Duration("linger", 5*time.Second, "how long to keep idle connections of clients after that")
	if err := flags.Parse(args); err != nil {
		return err
	}
	folder, err := unpack()
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	pool, err := procpool.New(procpool.Config{
		Name:       "python",
		Command:    func() *exec.Cmd { return exec.Command("python3", filepath.Join(folder, "worker.py")) },
		MinWorkers: 2, MaxWorkers: 4, MaxQueue: 100,
		QueryTimeout: 30 * time.Second,
		MaxFrame:     8 * largest, // as JSON a byte of the text may take six
		Recycle:      procpool.Recycle{MaxQueries: 10_000, MaxAge: time.Hour},
	})
	if err != nil {
		return err
	}
	app, err := lifecycle.New(lifecycle.Config{Name: "pool", HealthAddr: *health, DrainInterval: *drain, Linger: *linger})
	if err != nil {
		return err
	}
	app.Add(pool).
		Serve("http", &http.Server{Addr: *addr, Handler: routes(pool), ReadHeaderTimeout: 5 * time.Second}).
		Probe("python", lifecycle.ProbeFunc(func(ctx context.Context) error { return pool.Probe(ctx).Err }))
	return app.Run(ctx)
}

// unpack writes the worker to a file for Python.
func unpack() (folder string, err error) {
	folder, err = os.MkdirTemp("", "pool")
	if err != nil {
		return "", err
	}
	return folder, errors.Join(
		os.WriteFile(filepath.Join(folder, "worker.py"), workerProgram, 0o600),
		os.WriteFile(filepath.Join(folder, "lifecycle_worker.py"), []byte(sdk.Python), 0o600),
	)
}

const largest = 8 << 20

func routes(pool *procpool.Pool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /text", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largest))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		payload, err := json.Marshal(map[string]string{"text": string(text)})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := pool.Do(r.Context(), payload, procpool.Idempotent())
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(result, '\n'))
	})
	mux.HandleFunc("POST /images", func(w http.ResponseWriter, r *http.Request) {
		payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, largest))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		q, err := pool.Submit(r.Context(), payload, procpool.Idempotent())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		stream(w, q)
	})
	return mux
}

// stream writes a line for each message, and one for the end.
func stream(w http.ResponseWriter, q *procpool.Query) {
	out := http.NewResponseController(w)
	begun := false
	line := func(b []byte) {
		if !begun {
			w.Header().Set("Content-Type", "application/x-ndjson")
			begun = true
		}
		_, _ = w.Write(append(b, '\n'))
		_ = out.Flush()
	}
	for message, err := range q.Messages() {
		switch {
		case err == nil:
			line(message)
		case begun: // the status is sent, so the last line has the error
			text, _ := json.Marshal(map[string]string{"error": err.Error()})
			line(text)
			return
		default:
			refuse(w, err)
			return
		}
	}
	result, _ := q.Result()
	line(result)
}

// refuse answers with the error, and a status that says whose fault it is.
func refuse(w http.ResponseWriter, err error) {
	var rejected *procpool.RejectedError
	var answer *procpool.WorkerError
	status := http.StatusBadGateway
	switch {
	case errors.As(err, &rejected):
		w.Header().Set("Retry-After", strconv.Itoa(int(rejected.RetryAfter.Seconds())+1))
		status = http.StatusServiceUnavailable
	case errors.As(err, &answer):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	http.Error(w, fmt.Sprint(err), status)
}
