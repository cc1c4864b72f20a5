package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func helperLinux(mode, arg string) bool {
	switch mode {
	case "listen":
		listenHelper(arg)
	case "accept":
		beAcceptor()
	case "blind":
		beBlind()
	case "dials":
		dialHidden()
	case "feed": // joins the cgroup arg and runs eat in it
		if err := os.WriteFile(arg+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			fmt.Println(err)
			os.Exit(7)
		}
		p := worker.NewProcess("eat", helperCommand("eat", nil))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		<-p.Done()
		if err := json.NewEncoder(os.Stdout).Encode(p.State()); err != nil {
			panic(err)
		}
	case "eat": // uses more memory than its limit
		var kept [][]byte
		for range 64 {
			b := make([]byte, 8<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		time.Sleep(time.Minute)
		fmt.Println(len(kept))
	case "hoard": // takes long to end, because the kernel frees its memory first
		signal.Ignore(syscall.SIGTERM)
		b := make([]byte, 256<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		fmt.Println("ready")
		time.Sleep(time.Hour)
		fmt.Println(len(b))
	case "supervise": // starts a worker of its own, and is killed
		p := worker.NewProcess("sleep", helperCommand("sleep", nil))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		fmt.Println("worker", p.PID())
		time.Sleep(time.Hour)
	case "init": // is PID 1 of its own namespace
		beInit()
	case "subreaper":
		beSubreaper()
	case "orphan": // leaves a child behind, which ends after its parent
		child := helperCommand("nap", nil)
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println("left", child.Process.Pid)
	case "escape": // has a child in a session of its own, and stays
		child := helperCommand(arg, nil)
		child.Stdout = os.Stdout
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", child.Process.Pid)
		time.Sleep(time.Hour)
	case "leave": // has a worker with such a child in the cgroup arg, and is killed
		cmd := helperCommand("escape:ignore", nil)
		cmd.Stdout = os.Stdout
		p := worker.NewProcess("left", cmd, worker.WithCgroup(arg))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		time.Sleep(time.Hour)
	case "next": // starts the first worker of another process there
		p := worker.NewProcess("next", helperCommand("exit:0", nil), worker.WithCgroup(arg))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		<-p.Done()
		fmt.Println("next", p.Status())
	case "contained":
		beContained(arg)
	case "nobody":
		beNobody(arg)
	case "limits": // says its limits once it is told to
		_, _ = os.Stdin.Read(make([]byte, 1))
		var files, data syscall.Rlimit
		_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
		_ = syscall.Getrlimit(syscall.RLIMIT_DATA, &data)
		fmt.Printf("files %d %d data %d %d\n", files.Cur, files.Max, data.Cur, data.Max)
	case "without":
		beWithout(arg)
	case "ends":
		endInSeveralWays()
	case "nap":
		time.Sleep(100 * time.Millisecond)
	default:
		return false
	}
	return true
}

// beInit reaps orphans while os/exec waits for its own children, for some of them
// long after they have ended.
func beInit() {
	if os.Getpid() != 1 {
		panic("not PID 1")
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil { // do not change the host's /proc
		panic(err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		panic(err)
	}
	reaper := worker.NewReaper("reaper")
	if err := reaper.Start(context.Background()); err != nil {
		panic(err)
	}
	late := helperCommand("exit:9", nil)
	if err := late.Start(); err != nil {
		panic(err)
	}
	stolen := 0
	var workers []*worker.Process
	for code := range 20 {
		p := worker.NewProcess("child", helperCommand(fmt.Sprint("exit:", code), nil))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		workers = append(workers, p)
	}
	for range 30 {
		if err := helperCommand("orphan", nil).Run(); err != nil {
			fmt.Println(err)
			stolen++
		}
	}
	for code, p := range workers {
		<-p.Done()
		if got := p.State(); got.Exit.Code != code {
			fmt.Println("worker", got.Error)
			stolen++
		}
	}
	for childrenOf(1) > 1 { // the reaper must not reap the late child
		time.Sleep(10 * time.Millisecond)
	}
	var exit *exec.ExitError
	if err := late.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 9 {
		fmt.Println("late", err)
		stolen++
	}
	_ = reaper.Stop(context.Background())
	fmt.Println("stolen", stolen, "children", childrenOf(1))
}

// childrenOf counts the children of a process, including zombies.
func childrenOf(parent int) (n int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range dirs {
		text, _ := os.ReadFile(file)
		_, rest, _ := bytes.Cut(text, []byte(") "))
		if fields := bytes.Fields(rest); len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			n++
		}
	}
	return n
}
