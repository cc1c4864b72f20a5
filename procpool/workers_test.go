//go:build unix

package procpool_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/child"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// The state of the sessions of mode serve.
var (
	nextMu sync.Mutex
	next   = map[string]int{}
)

var kept [][]byte // the memory that mode serve leaks

func serve(ctx context.Context, q *child.Query) (any, error) {
	var a ask
	_ = json.Unmarshal(q.Payload, &a)
	switch a.Op {
	case "sleep", "deaf":
		if a.Op == "deaf" {
			ctx = context.Background()
			if a.Text != "" {
				_ = q.Send(a.Text)
			}
		}
		timer := time.NewTimer(time.Duration(a.Seconds * float64(time.Second)))
		defer timer.Stop()
		select {
		case <-timer.C:
			return "slept", nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case "count":
		if err := q.Session("s-" + q.ID); err != nil {
			return nil, err
		}
		for i := range a.N {
			content := any(i)
			if a.Size > 0 {
				content = strings.Repeat("x", a.Size)
			}
			if err := q.Send(content); err != nil {
				return nil, err
			}
		}
		return a.N, nil
	case "parts":
		for i := range a.N {
			if err := q.Send(child.Data{Value: i, Bytes: bytes.Repeat([]byte{byte(i)}, a.Size)}); err != nil {
				return nil, err
			}
		}
		return child.Data{Bytes: []byte("end")}, nil
	case "exit-bytes":
		if string(q.Bytes) == "die" {
			os.Exit(a.N)
		}
	case "exit":
		fmt.Fprintln(os.Stderr, a.Text)
		os.Exit(a.N)
	case "exit-after-message":
		_ = q.Send("partial")
		os.Exit(a.N)
	case "exit-after-many":
		for i := range 1000 {
			_ = q.Send(i)
		}
		os.Exit(a.N)
	case "exit-once": // exits on the first query that any worker gets
		if f, err := os.OpenFile(a.Path, os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			os.Exit(a.N)
		}
		return "second time", nil
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.Signal(a.N))
		time.Sleep(time.Hour)
	case "print":
		fmt.Fprint(os.Stdout, a.Text)
		fmt.Fprint(os.Stderr, a.Text)
	case "env":
		return os.Getenv(a.Text), nil
	case "wait": // for a file
		for _, err := os.Stat(a.Path); err != nil && ctx.Err() == nil; _, err = os.Stat(a.Path) {
			time.Sleep(5 * time.Millisecond)
		}
		return "waited", nil
	case "next": // counts the queries of a session; dies for one tenant
		if q.About.Metadata["tenant"] == "mallory" {
			os.Exit(1)
		}
		nextMu.Lock()
		defer nextMu.Unlock()
		next[q.About.Metadata["session"]]++
		return next[q.About.Metadata["session"]], nil
	case "pid":
		return os.Getpid(), nil
	case "files":
		var limit syscall.Rlimit
		err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
		return limit.Cur, err
	case "deaf-pid":
		_ = q.Send(os.Getpid())
		time.Sleep(time.Hour)
	case "fail":
		return nil, errors.New(a.Text)
	case "panic":
		panic(a.Text)
	case "leak":
		b := make([]byte, a.Size)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		kept = append(kept, b)
		return len(kept), nil
	case "big":
		return strings.Repeat("x", a.Size), nil
	case "fork", "escape": // leaves a child in the group, or in a session of its own, which ignores SIGTERM
		cmd := self("stay")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: a.Op == "escape"}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return cmd.Process.Pid, nil
	}
	return child.Data{Value: q.Payload, Bytes: q.Bytes}, nil
}

// helper is a worker. All modes but serve break the contract in some way.
func helper(mode string) {
	mode, arg, _ := strings.Cut(mode, ":")
	switch mode {
	case "serve":
		if err := child.Serve(context.Background(), serve); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "words": // docs/guides/pool.md shows it
		if err := child.Serve(context.Background(), Words); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "many": // takes several queries at a time
		n, _ := strconv.Atoi(arg)
		if err := child.Serve(context.Background(), serve, child.Concurrency(n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case "ends": // says what happens
		out, err := os.Create(filepath.Join(os.Getenv("ENDS"), strconv.Itoa(os.Getpid())))
		if err != nil {
			panic(err)
		}
		say := func(line string) {
			fmt.Fprintln(out, line)
		}
		answer := func(_ context.Context, q *child.Query) (any, error) {
			say("query")
			fmt.Println("line", string(q.Payload))
			if string(q.Payload) == `"die"` {
				os.Exit(3)
			}
			return os.Getpid(), nil
		}
		begin := func(context.Context) error { say("startup"); return nil }
		end := func() {
			if os.Getenv("HANG") != "" {
				time.Sleep(time.Hour)
			}
			say("shutdown")
		}
		if err := child.Serve(context.Background(), answer, child.OnStartup(begin), child.OnShutdown(end)); err != nil {
			os.Exit(1)
		}
		say("exit")
		return
	case "gated": // waits for a file, and is then a helper of the mode behind it
		file, then, _ := strings.Cut(arg, ":")
		for {
			if _, err := os.Stat(file); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		helper(cmp.Or(then, "serve"))
		return
	case "unlucky":
		unlucky(arg)
		return
	case "stay":
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case "stays": // does not end when the pool has gone
		_ = child.Serve(context.Background(), serve)
		time.Sleep(time.Hour)
	case "never-ready":
		time.Sleep(time.Hour)
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot start:", arg)
		os.Exit(3)
	case "wrapped": // starts a pool of wrapped workers, and is killed
		wrapped(arg)
		return
	case "namespace": // is the first process of a pid namespace
		namespace(arg)
		return
	case "parent": // starts a pool, and is killed
		parent(arg)
		return
	case "daemon": // leaves the group before it connects
		cmd := self("serve")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "the daemon:", err)
		}
		time.Sleep(time.Hour)
	case "probe-first": // another process of the group connects before the worker does
		var oldest net.Conn
		for range 20 { // more than maxPending
			conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
			if err != nil {
				panic(err)
			}
			defer conn.Close() // half open: it sends nothing
			if oldest == nil {
				oldest = conn
			}
		}
		_ = oldest.SetReadDeadline(time.Now().Add(patience / 2))
		if _, err := oldest.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			panic(fmt.Sprintf("the pool keeps all connections: %v", err))
		}
		again, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
		if err == nil {
			again.Close()
		}
		helper("serve")
		return
	}
	raw(mode)
}

// raw writes the protocol by hand.
func raw(mode string) {
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		panic(err)
	}
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(conn, format+"\n", args...); err != nil {
			os.Exit(1)
		}
	}
	switch mode {
	case "garbage-first":
		say("hello")
		time.Sleep(time.Hour)
	case "ready-twice":
		say(`{"type":"ready"}`)
	}
	if mode == "told" {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		go func() {
			<-asked
			hear("SIGTERM")
			os.Exit(1)
		}()
	}
	say("%s", raw2(mode))
	lines := bufio.NewReader(conn)
	first := true
	owed := 0
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, os.ErrDeadlineExceeded) {
			for ; owed > 0; owed-- {
				say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
			}
			_ = conn.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil {
			os.Exit(1)
		}
		var e wire.Envelope
		if err := errors.Join(wire.Validate(line), wire.Decode(bytes.TrimSpace(line), &e)); err != nil {
			panic(err) // every message of a pool fits its schema
		}
		if mode == "told" { // records the messages that it gets
			heard(&e)
		}
		if e.Type == wire.Shutdown && mode == "ignores-shutdown" {
			signal.Ignore(syscall.SIGTERM)
			continue
		}
		if e.Type == wire.Shutdown {
			say(`{"type":"shutdown_ack"}`)
			return
		}
		if e.Type == wire.Cancel && mode == "lies" { // the rest of what it has announced
			_, _ = conn.Write([]byte(os.Getenv("LIES_REST")))
			continue
		}
		if e.Type == wire.Cancel && (mode == "cancel-late" || mode == "told") {
			say(`{"type":"message","requestId":%q,"content":"late"}`, e.RequestID)
			say(`{"type":"complete","requestId":%q,"result":"late"}`, e.RequestID)
			say(`{"type":"complete","requestId":%q,"result":"even later"}`, e.RequestID)
			continue
		}
		if e.Type == wire.HealthCheck && mode == "health-after-query" {
			owed++ // like a worker with one thread: it answers when it is idle
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			continue
		}
		if e.Type == wire.HealthCheck && mode != "no-health" {
			say(`{"type":"health_ok","uptime":1,"queriesProcessed":0}`)
		}
		if e.Type == wire.Dump && mode == "stacks-complete" {
			say(`{"type":"complete","requestId":"q1","result":"too late"}`)
		}
		if e.Type == wire.Dump && mode == "stacks-late" {
			time.Sleep(300 * time.Millisecond)
			say(`{"type":"stacks","stacks":"late"}`)
		}
		if e.Type != wire.Query {
			continue
		}
		id := e.RequestID
		if mode == "health-after-query" {
			_ = conn.SetReadDeadline(time.Time{})
			time.Sleep(4500 * time.Millisecond) // longer than HealthTimeout
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		}
		if mode == "stop-when-asked" && !first {
			for os.Getenv("GATE") != "" { // wait until another query is in the queue
				if _, err := os.Stat(os.Getenv("GATE")); err == nil {
					break
				}
				time.Sleep(5 * time.Millisecond)
			}
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
		if !first && mode != "unknown-types" && mode != "stacks-late" {
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
			continue
		}
		first = false
		switch mode {
		case "lies":
			lies(conn, id)
		case "garbage":
			say(`{"type":"message","requestId":%q,"content":}`, id)
		case "plain":
			say(`{"type":"complete","requestId":%q,"result":"plain"}`, id)
		case "call-other":
			say(`{"type":"call","requestId":"q999","callId":"1","method":"m","params":1}`)
		case "call-flood":
			for i := range 100 {
				say(`{"type":"call","requestId":%q,"callId":"%d","method":"m","params":1}`, id, i)
			}
			refused := 0
			for range 68 {
				reply, err := lines.ReadBytes('\n')
				if err != nil || !bytes.Contains(reply, []byte("32 calls wait")) {
					panic(string(reply))
				}
				refused++
			}
			say(`{"type":"complete","requestId":%q,"result":%d}`, id, refused)
		case "nul":
			say("{\"type\":\"complete\",\"requestId\":%q,\"result\":\"a\x00b\"}", id)
		case "escape":
			say(`{"type":"complete","requestId":%q,"result":"\q"}`, id)
		case "not-utf-8":
			say("{\"type\":\"complete\",\"requestId\":%q,\"result\":\"\xc3\"}", id)
		case "partial":
			fmt.Fprintf(conn, `{"type":"complete","requestId":%q,"res`, id)
			conn.Close()
			time.Sleep(time.Hour)
		case "disconnect":
			conn.Close()
			time.Sleep(time.Hour)
		case "stall":
			fmt.Fprintf(conn, `{"type":"complete","requestId":%q,"res`, id)
			time.Sleep(time.Hour)
		case "ack-unasked":
			say(`{"type":"shutdown_ack"}`)
		case "other-request":
			say(`{"type":"complete","requestId":"q999","result":1}`)
		case "unknown-types":
			say(`{"type":"telemetry","requestId":%q,"x":[1,{"y":"}"}]}`, id)
			say(`{"type":"complete","requestId":%q,"result":"fine","more":true}`, id)
		case "flood":
			for {
				say(`{"type":"message","requestId":%q,"content":"flood"}`, id)
			}
		case "flood-unknown":
			for {
				say(`{"type":"telemetry"}`)
			}
		case "flood-calls":
			for {
				say(`{"type":"call","requestId":%q,"callId":"c","method":"m","params":1}`, id)
			}
		case "flood-stacks":
			for {
				say(`{"type":"stacks","stacks":"s"}`)
			}
		case "100MB", "100MB-complete":
			kind := "message"
			if mode == "100MB-complete" {
				kind = "complete"
			}
			fmt.Fprintf(conn, `{"type":%q,"requestId":%q,"content":"`, kind, id)
			block := bytes.Repeat([]byte("x"), 1<<20)
			for range 100 {
				if _, err := conn.Write(block); err != nil {
					os.Exit(1)
				}
			}
			say(`"}`)
			if kind == "message" {
				say(`{"type":"complete","requestId":%q,"result":1}`, id)
			}
		case "cancel-late", "told", "stacks-never", "stacks-complete", "stacks-late": // waits for the cancel
		default:
			say(`{"type":"complete","requestId":%q,"result":"well"}`, id)
		}
	}
}

// heard appends the type of a message to the file that $HEARD names.
func heard(e *wire.Envelope) {
	line := string(e.Type)
	if e.Type == wire.Shutdown && !e.Graceful {
		line += " at once"
	}
	hear(line)
}

func hear(line string) {
	f, err := os.OpenFile(os.Getenv("HEARD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
