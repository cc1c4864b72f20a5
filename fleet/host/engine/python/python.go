// Package python is the engine for Python, run by the system's python3 in a
// process of its own for each worker (package procpool).
//
// Code defines a function handle that takes a message:
//
//	def handle(message):
//	    seen = int(state.get("seen") or 0) + 1
//	    state.put("seen", str(seen))
//	    if not message.text:
//	        reject("an empty order")
//	    return {"topic": "orders.done", "data": message.text.upper(), "headers": {"Seen": str(seen)}}
//
// message has worker, id, topic, attempt, fence, headers (name to a list of
// texts), data (bytes) and text. The result is None, text or bytes for the
// worker's output topic, a dict with topic, data and headers, or a list of these.
// state.get returns text or None, state.get_bytes bytes or None; state.put and
// state.delete change the state. reject(reason), or raise Reject(reason), makes
// the message a dead letter; after any other exception the host tries the message
// again. print writes to the log.
//
// Globals last from one message to the next, and are lost when the process ends.
//
// This is not a sandbox. The code has all rights of the host's user, for files
// and for the network. Run hosts for code that you do not trust in a container
// that you can afford to lose. The engine promises only this: code that hangs,
// crashes or uses too much memory ends its own process and nothing else.
package python

import (
	"bufio"
	"context"
	_ "embed" // embeds the runner
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/internal/value"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/sdk"
)

//go:embed runner.py
var runner string

// Engine runs Python.
type Engine struct {
	python string
}

// New returns an engine that runs the python3 of the PATH, and an error when
// there is none.
func New() (*Engine, error) {
	path, err := exec.LookPath("python3")
	if err != nil {
		return nil, fmt.Errorf("python engine: %w", err)
	}
	return &Engine{python: path}, nil
}

// MIMETypes returns the MIME types of Python code.
func (*Engine) MIMETypes() []string { return []string{"text/x-python", "application/x-python"} }

// Features says that each worker is a process of its own: isolated, interruptible
// and with an exact memory limit.
func (*Engine) Features() engine.Features {
	return engine.Features{
		Interrupts: true, MemoryLimit: true, Isolated: true,
		Notes: "memory is the process's address space beyond what the interpreter takes (RLIMIT_AS, which macOS does not hold); the code may read and write what the host's user may",
	}
}

// Load starts the process and has it load the code.
func (e *Engine) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	dir, err := os.MkdirTemp("", "hosted-python-")
	if err != nil {
		return nil, fmt.Errorf("python: %w", err)
	}
	p := &program{cfg: cfg, dir: dir}
	if err := p.start(e.python, code); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("python: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Limits.Load)
	defer cancel()
	if _, err := p.ask(ctx, nil, nil); err != nil {
		_ = p.Close()
		var limit *engine.LimitError
		switch {
		case errors.As(err, &limit) && limit.What == "time":
			return nil, engine.BadCode(&engine.LimitError{What: "load time", Limit: cfg.Limits.Load.String()})
		case limit != nil, errors.As(err, new(*answerError)), errors.As(err, new(*procpool.CrashError)):
			return nil, engine.BadCode(err)
		}
		return nil, err
	}
	return p, nil
}

type program struct {
	cfg    engine.Config
	dir    string
	pool   *procpool.Pool
	listen net.Listener
	serve  sync.WaitGroup
	close  sync.Once

	mu    sync.Mutex // guards everything below
	ctx   context.Context
	state engine.State // of the message in progress; nil when there is none
	conns map[net.Conn]struct{}
}

func (p *program) start(python string, code []byte) error {
	files := map[string]string{"hosted.py": string(code), "runner.py": runner, "lifecycle_worker.py": sdk.Python}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	var err error
	if p.listen, err = net.Listen("unix", filepath.Join(p.dir, "state")); err != nil {
		return err
	}
	p.conns = make(map[net.Conn]struct{})
	p.serve.Go(p.accept)
	l := p.cfg.Limits
	p.pool, err = procpool.New(procpool.Config{
		Name: "python-" + p.cfg.Worker,
		Command: func() *exec.Cmd {
			cmd := exec.Command(python, "-u", filepath.Join(p.dir, "runner.py"), filepath.Join(p.dir, "hosted.py"),
				strconv.FormatInt(l.Memory, 10), strconv.FormatInt(l.Output, 10), strconv.Itoa(l.Outputs))
			cmd.Env = append(os.Environ(), "LIFECYCLE_STATE="+filepath.Join(p.dir, "state"), "PYTHONDONTWRITEBYTECODE=1",
				// glibc reserves 64 MiB or more for each thread that allocates, and the limit counts them (mallopt(3)).
				"MALLOC_ARENA_MAX=1")
			return cmd
		},
		MaxWorkers: 1, MaxQueue: 1, QueryTimeout: 24 * time.Hour,
		CancelGrace: 200 * time.Millisecond, ShutdownGrace: time.Second, KillGrace: 500 * time.Millisecond, DrainTimeout: time.Second,
		SocketDir: filepath.Join(p.dir, "pool"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return p.pool.Start(context.Background())
}

// Close ends the process and removes its files.
func (p *program) Close() (err error) {
	p.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if p.pool != nil {
			err = p.pool.Stop(ctx)
		}
		if p.listen != nil {
			_ = p.listen.Close()
		}
		p.mu.Lock()
		for c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.serve.Wait()
		err = errors.Join(err, os.RemoveAll(p.dir))
	})
	return err
}

// query is a message in the form that the runner reads.
type query struct {
	Worker  string              `json:"worker"`
	ID      string              `json:"id"`
	Topic   string              `json:"topic"`
	Attempt int                 `json:"attempt"`
	Fence   uint64              `json:"fence"`
	Headers map[string][]string `json:"headers"`
	Data    []byte              `json:"data"`
}

// answer is an answer of the runner. One of its fields is set.
type answer struct {
	Result any    `json:"result"`
	Error  string `json:"error"`
	Reject string `json:"reject"`
	Limit  string `json:"limit"`
}

// answerError is an exception that the code raised.
type answerError struct{ text string }

func (e *answerError) Error() string { return e.text }

// Handle sends a message to the process and returns its answer.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	payload, err := json.Marshal(query{m.Worker, m.ID, m.Topic, m.Attempt, m.Fence, m.Header, m.Data})
	if err != nil {
		return nil, err
	}
	result, err := p.ask(ctx, payload, s)
	if err != nil {
		return nil, err
	}
	outputs, err := value.Outputs(plain(result))
	if err != nil {
		return nil, err
	}
	return outputs, p.cfg.Limits.Check(outputs)
}

// ask sends a query, or the request to load the code when q is nil, and reads the
// answer.
func (p *program) ask(ctx context.Context, payload json.RawMessage, s engine.State) (any, error) {
	if payload == nil {
		payload = json.RawMessage("null")
	}
	p.mu.Lock()
	p.ctx, p.state = ctx, s
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.ctx, p.state = nil, nil
		p.mu.Unlock()
	}()
	q, err := p.pool.Submit(ctx, payload)
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	printer := engine.NewPrinter(p.cfg)
	defer printer.Close()
	for part, err := range q.Messages() {
		if err != nil {
			break // the result says the same
		}
		var line struct {
			Print string `json:"print"`
		}
		if json.Unmarshal(part, &line) == nil {
			_ = printer.Println(line.Print) // the runner counts what is printed
		}
	}
	raw, err := q.Result()
	if err != nil {
		return nil, p.failed(ctx, err)
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("python: the runner's answer: %w", err)
	}
	switch {
	case a.Limit == "memory":
		return nil, p.cfg.Limits.MemoryLimit()
	case a.Limit == "outputs":
		return nil, &engine.LimitError{What: "outputs", Limit: fmt.Sprintf("%d messages", p.cfg.Limits.Outputs)}
	case a.Limit != "":
		return nil, p.cfg.Limits.OutputLimit()
	case a.Reject != "":
		return nil, engine.Reject(a.Reject)
	case a.Error != "":
		return nil, &answerError{a.Error}
	}
	return a.Result, nil
}

// failed returns the reason why a query has no answer.
func (p *program) failed(ctx context.Context, err error) error {
	// The pool uses the context's deadline, and may report it a moment before the
	// context ends.
	if ctx.Err() != nil || errors.As(err, new(*procpool.DeadlineError)) {
		return fmt.Errorf("%w: %w", p.cfg.Limits.TimeLimit(), err)
	}
	return err
}

// plain replaces the runner's marks with the values that they stand for.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if name, ok := v["$type"].(string); ok {
			return value.Named(name)
		}
		if text, ok := v["$bytes"].(string); ok {
			var data []byte
			if err := json.Unmarshal([]byte(strconv.Quote(text)), &data); err == nil {
				return data
			}
		}
		for key, one := range v {
			v[key] = plain(one)
		}
	case []any:
		for i, one := range v {
			v[i] = plain(one)
		}
	}
	return v
}

// accept serves the state to the process. Only the host's user can enter the
// socket's folder.
func (p *program) accept() {
	for {
		c, err := p.listen.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.serve.Go(func() {
			defer func() {
				_ = c.Close()
				p.mu.Lock()
				delete(p.conns, c)
				p.mu.Unlock()
			}()
			lines := bufio.NewScanner(c)
			lines.Buffer(nil, 32<<20)
			for lines.Scan() {
				reply, err := json.Marshal(p.access(lines.Bytes()))
				if err != nil {
					return
				}
				if _, err := c.Write(append(reply, '\n')); err != nil {
					return
				}
			}
		})
	}
}

// reply is the answer to one access to state.
type reply struct {
	Found bool   `json:"found,omitempty"`
	Value []byte `json:"value,omitempty"`
	Error string `json:"error,omitempty"`
}

func (p *program) access(line []byte) reply {
	var ask struct {
		Op    string `json:"op"`
		Key   string `json:"key"`
		Value []byte `json:"value"`
	}
	if err := json.Unmarshal(line, &ask); err != nil {
		return reply{Error: err.Error()}
	}
	p.mu.Lock()
	ctx, state := p.ctx, p.state
	p.mu.Unlock()
	if state == nil {
		return reply{Error: "state." + ask.Op + ": there is no message: call it from handle"}
	}
	var r reply
	var err error
	switch ask.Op {
	case "get":
		r.Value, r.Found, err = state.Get(ctx, ask.Key)
	case "put":
		err = state.Put(ctx, ask.Key, ask.Value)
	case "delete":
		err = state.Delete(ctx, ask.Key)
	default:
		err = fmt.Errorf("there is no state.%s", ask.Op)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}
