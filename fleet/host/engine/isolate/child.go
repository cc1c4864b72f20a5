package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool/child"
)

// Main makes this process's program able to run the code of the engines in children.
// Call it first in main: in a child it runs code and never returns. In any other
// process it returns at once. An [External] engine need not be given.
func Main(engines ...engine.Engine) {
	switch os.Getenv(envRole) {
	case roleLaunch:
		fail(launch(os.Getenv(envSpec)))
	case roleProbe:
		probe()
	case roleRun:
		fail(run(engines))
	default:
		selfRuns.Store(true)
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run answers the host until the host ends this process.
func run(engines []engine.Engine) error {
	registry, err := engine.NewRegistry(engines...)
	if err != nil {
		return err
	}
	r := &runner{engines: registry}
	return child.Serve(context.Background(), r.answer)
}

// runner answers the host in a child, which has one program.
type runner struct {
	engines *engine.Registry
	program engine.Program
	limits  engine.Limits
	maxCall int64
	out     *child.Query // of the call in progress, where lines go
}

func (r *runner) answer(ctx context.Context, q *child.Query) (any, error) {
	var question ask
	if err := json.Unmarshal(q.Payload, &question); err != nil {
		return nil, err
	}
	r.out = q
	switch {
	case question.Load != nil:
		return r.load(ctx, question.Load, q.Bytes), nil
	case question.Handle == nil:
		return answer{}, nil
	case r.program == nil:
		return answer{Empty: true}, nil
	}
	for i := range question.Handle {
		a, err := r.handle(ctx, q, i, &question.Handle[i])
		if err != nil || i == len(question.Handle)-1 {
			return a, nil //nolint:nilerr // the answer says it
		}
		if err := q.Send(part{Answer: &a}); err != nil {
			return nil, err
		}
	}
	return answer{}, nil
}

func (r *runner) handle(ctx context.Context, q *child.Query, i int, m *message) (answer, error) {
	m.Message.Timer = m.Timer.fired()
	outputs, err := r.program.Handle(ctx, m.Message, remote{q, i, r.maxCall})
	if err == nil {
		err = r.limits.Check(outputs) // the host reads no answer that is larger
	}
	a := answered(err)
	if !errors.Is(err, engine.ErrLimit) { // otherwise the outputs may be larger than the connection takes
		a.Outputs = outputs
	}
	return a, err
}

func (r *runner) load(ctx context.Context, l *load, code []byte) answer {
	e, err := r.engines.Lookup(l.MIMEType)
	if err != nil {
		return answer{Error: "the program of the children: " + err.Error() + ": give its Main the engine"}
	}
	bound(l.Limits.Memory)
	r.limits, r.maxCall = l.Limits, l.MaxCall
	r.program, err = e.Load(ctx, code, engine.Config{
		Worker:     l.Worker,
		Limits:     l.Limits,
		Disposable: true,
		Env:        l.Env,
		Log:        func(line string) { _ = r.out.Send(part{Print: &line}) },
	})
	return answered(err)
}

// bound limits the memory of this process to its present size plus bytes.
func bound(bytes int64) {
	debug.SetMemoryLimit(goMemory() + bytes)
	debug.SetMaxStack(int(max(bytes/2, 1<<20)))
	_ = limitData(bytes + margin) // a missing limit was reported at the start
}

func answered(err error) answer {
	var limit *engine.LimitError
	var reject *engine.RejectError
	switch {
	case err == nil:
		return answer{}
	case errors.As(err, &limit):
		return answer{Limit: limit.What, BadCode: errors.Is(err, engine.ErrBadCode)}
	case errors.As(err, &reject):
		return answer{Reject: reject.Reason}
	case errors.Is(err, engine.ErrBadCode):
		return answer{Error: unwrapBad(err), BadCode: true}
	}
	return answer{Error: err.Error()}
}

// unwrapBad returns the text of an error of [engine.BadCode] without the words that
// the host adds again.
func unwrapBad(err error) string {
	return strings.TrimPrefix(err.Error(), engine.ErrBadCode.Error()+": ")
}

// remote is the state of the message in progress, which the host keeps.
type remote struct {
	query   *child.Query
	index   int
	maxCall int64 // bytes of a value
}

func (s remote) call(ctx context.Context, method string, a access) (access, error) {
	if err := engine.CheckKey(a.Key); err != nil && method != callFetch {
		return access{}, err
	}
	return s.ask(ctx, method, a)
}

func (s remote) ask(ctx context.Context, method string, a access) (access, error) {
	size := len(a.Value)
	if a.Request != nil {
		size = len(a.Request.Body)
	}
	if int64(size) > s.maxCall {
		return access{}, fmt.Errorf("%s: %d bytes are more than %d", nameOf(method), size, s.maxCall)
	}
	a.Index = s.index
	raw, err := s.query.Call(ctx, method, a)
	if err != nil {
		var refused *child.CallError
		if errors.As(err, &refused) {
			err = errors.New(refused.Message)
		}
		return access{}, err
	}
	var result access
	return result, json.Unmarshal(raw, &result)
}

func (s remote) Get(ctx context.Context, key string) ([]byte, bool, error) {
	a, err := s.call(ctx, callGet, access{Key: key})
	return a.Value, a.Found, err
}

func (s remote) Put(ctx context.Context, key string, v []byte) error {
	_, err := s.call(ctx, callPut, access{Key: key, Value: v})
	return err
}

func (s remote) Delete(ctx context.Context, key string) error {
	_, err := s.call(ctx, callDelete, access{Key: key})
	return err
}

func (s remote) Fetch(ctx context.Context, r *engine.Request) (*engine.Response, error) {
	a, err := s.call(ctx, callFetch, access{Request: r})
	if err == nil && a.Response == nil {
		err = errors.New("fetch: the host gave no response")
	}
	return a.Response, err
}
