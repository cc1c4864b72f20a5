//go:build unix

package worker_test

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func helperUnix(mode, arg string) bool {
	switch mode {
	case "suicide":
		n, _ := strconv.Atoi(arg)
		_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
		time.Sleep(time.Hour)
	case "daemon": // leaves a process in a session of its own, which keeps the output open
		child := helperCommand("sleep", nil)
		child.Stdout = os.Stdout
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", child.Process.Pid)
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "deaf": // ends with a code of its own when asked, although nothing takes its output
		code, _ := strconv.Atoi(arg)
		signal.Ignore(syscall.SIGPIPE)
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		fmt.Println("ready")
		<-asked
		os.Exit(code)
	default:
		return false
	}
	return true
}
