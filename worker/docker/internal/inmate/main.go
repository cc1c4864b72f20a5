// Command inmate is the program in the containers of the tests. Its first
// argument selects its behaviour.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: inmate BEHAVIOUR [ARGUMENT]")
		os.Exit(64)
	}
	arg := ""
	if len(os.Args) > 2 {
		arg = os.Args[2]
	}
	switch os.Args[1] {
	case "exit":
		code, _ := strconv.Atoi(arg)
		fmt.Println("out")
		fmt.Fprintln(os.Stderr, "err")
		os.Exit(code)
	case "until": // runs until the signal in its argument comes, then exits with the status in the next
		number, _ := strconv.Atoi(arg)
		code, _ := strconv.Atoi(os.Args[3])
		came := make(chan os.Signal, 1)
		signal.Notify(came, syscall.Signal(number))
		signal.Ignore(syscall.SIGHUP)
		fmt.Println("ready")
		<-came
		fmt.Println("bye")
		os.Exit(code)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "env":
		for _, v := range os.Environ() {
			if strings.HasPrefix(v, "LIFECYCLE_") || strings.HasPrefix(v, "TEST_") {
				fmt.Println(v)
			}
		}
		os.Exit(3)
	case "grow":
		fmt.Println("ready")
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			kept = append(kept, b)
			_ = kept
		}
	case "count":
		for i := 0; ; i++ {
			fmt.Println(i)
			time.Sleep(20 * time.Millisecond)
		}
	case "flood": // writes this many bytes without a newline
		n, _ := strconv.Atoi(arg)
		block := []byte(strings.Repeat("x", 64<<10))
		for ; n > 0; n -= len(block) {
			_, _ = os.Stdout.Write(block[:min(n, len(block))])
		}
	case "read":
		text, err := os.ReadFile(arg)
		fmt.Printf("%s %v\n", text, err)
	}
}
