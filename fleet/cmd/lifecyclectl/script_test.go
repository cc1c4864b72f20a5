package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// TestScripts runs lifecyclectl as its users do: testdata/script/*.txtar. Each
// script that begins with "site" has a NATS, workflows, hosted workers and an
// operator server of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				return errors.New("a script's T is not a testing.TB")
			}
			env.Values["stage"] = &stage{tb: tb}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": statusCommand, "await": awaitCommand,
			"site": siteCommand, "server": serverCommand, "entity": entityCommand, "move": moveCommand, "process": processCommand,
			"publish": publishCommand, "deadletters": lettersCommand, "lost": lostCommand, "certificate": certificateCommand, "bucket": bucketCommand,
		},
	})
}

// statusCommand: status N CMD... runs CMD and wants the exit status N.
func statusCommand(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit status %d, want %s", got, args[0])
	}
}

// awaitCommand: await FILE REGEXP waits until the file has it.
func awaitCommand(ts *testscript.TestScript, _ bool, args []string) {
	want := regexp.MustCompile("(?m)" + args[1])
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(ts.MkAbs(args[0])) // it may not exist yet
		if want.Match(text) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s never had %s:\n%s", args[0], args[1], text)
		}
	}
}

// stage is the state of a script.
type stage struct {
	tb    testing.TB
	site  *site
	certs *certificates
}

func stageOf(ts *testscript.TestScript) *stage {
	s, ok := ts.Value("stage").(*stage)
	if !ok {
		ts.Fatalf("no stage")
	}
	return s
}

func siteOf(ts *testscript.TestScript) *site {
	s := stageOf(ts).site
	if s == nil {
		ts.Fatalf(`begin the script with "site"`)
	}
	return s
}

// siteCommand: site starts everything; $LIFECYCLECTL_SERVER is its server.
func siteCommand(ts *testscript.TestScript, _ bool, _ []string) {
	s := stageOf(ts)
	s.site = newSite(s.tb)
	url, err := s.site.serve(s.site.config())
	ts.Check(err)
	ts.Setenv("LIFECYCLECTL_SERVER", url)
	ts.Setenv("LIFECYCLECTL_NATS", s.site.nats)
}

// serverCommand: server stop; server start [tokens FILE | tls].
func serverCommand(ts *testscript.TestScript, _ bool, args []string) {
	s := siteOf(ts)
	s.halt()
	if args[0] == "stop" {
		return
	}
	cfg := s.config()
	var err error
	switch {
	case len(args) > 2 && args[1] == "tokens":
		cfg.Auth, err = operator.TokenFile(ts.MkAbs(args[2]), brokertest.Quiet())
		ts.Check(err)
	case len(args) > 1 && args[1] == "tls":
		cfg.TLS, err = stageOf(ts).certs.server()
		ts.Check(err)
		cfg.Auth, err = operator.Certificates(operator.CertificateConfig{Grants: []operator.Grant{{Subject: "user:ada", Role: operator.RoleOperator}, {Subject: "user:vic", Role: operator.RoleViewer}}})
		ts.Check(err)
	}
	url, err := s.serve(cfg)
	ts.Check(err)
	ts.Setenv("LIFECYCLECTL_SERVER", url)
}

// certificateCommand: certificate NAME... writes ca.pem, and NAME.pem with
// NAME.key of each.
func certificateCommand(ts *testscript.TestScript, _ bool, names []string) {
	certs, err := newCertificates()
	ts.Check(err)
	stageOf(ts).certs = certs
	write := func(name string, text []byte) { ts.Check(os.WriteFile(ts.MkAbs(name), text, 0o600)) }
	write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certs.cert.Raw}))
	for _, name := range names {
		cert, key, err := certs.pem(name)
		ts.Check(err)
		write(name+".pem", cert)
		write(name+".key", key)
	}
}

// entityCommand: entity ID PHASE [ORG] creates a survey; entity -delete ID
// deletes one; entity -many N creates N of them.
func entityCommand(ts *testscript.TestScript, _ bool, args []string) {
	mgr, ctx := siteOf(ts).mgr, context.Background()
	switch args[0] {
	case "-delete":
		ts.Check(mgr.Delete(ctx, "drone-survey", args[1]))
	case "-many":
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		for i := range n {
			ts.Check(mgr.Create(ctx, &survey{ID: fmt.Sprintf("many-%05d", i), State: "planning", Org: "acme"}))
		}
	default:
		ts.Check(mgr.Create(ctx, &survey{ID: args[0], State: args[1], Org: append(args, "", "acme")[2]}))
	}
}

// moveCommand: move ID PHASE is a transition by the program, not by an operator.
func moveCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(siteOf(ts).mgr.Transition(context.Background(), "drone-survey", args[0], args[1], workflow.TransitionSourceComponent, "by a script"))
}

// bucketCommand: bucket delete NAME deletes a bucket.
func bucketCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(siteOf(ts).js.DeleteKeyValue(context.Background(), args[1]))
}

// processCommand: process SERVICE ID runs one that announces itself, with a
// unit that runs.
func processCommand(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(siteOf(ts).process(args[0], args[1], func(app *lifecycle.App) {
		app.Go("poller", func(ctx context.Context) error { <-ctx.Done(); return nil })
		app.Supervise("feeder", func(ctx context.Context) error { <-ctx.Done(); return nil }, lifecycle.DefaultBackoff())
	}))
}

// publishCommand: publish SUBJECT TEXT is a message for hosted workers.
func publishCommand(ts *testscript.TestScript, _ bool, args []string) {
	_, err := siteOf(ts).js.Publish(context.Background(), args[0], []byte(args[1]))
	ts.Check(err)
}

// lostCommand: lost WORKER... makes their recovery fail.
func lostCommand(ts *testscript.TestScript, _ bool, args []string) { siteOf(ts).workers.lose(args...) }

// lettersCommand: deadletters WORKER N [FAILAFTER] gives a worker dead letters.
func lettersCommand(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	failAfter := 0
	if len(args) > 2 {
		failAfter, err = strconv.Atoi(args[2])
		ts.Check(err)
	}
	siteOf(ts).workers.die(args[0], n, failAfter)
}
