package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/pleme-io/lifecycle-go/worker"
)

const nobody = 65534

// beNobody gives up the rights of root, and says how processes start then. arg is
// "FROM,DELEGATED,ROOTS,SETUID,MINE": the cgroup to begin in, "" for the present one, one that
// belongs to the user, one that does not, a program that gets the rights of root,
// and a cgroup that belongs to the user, of v1 if there is one.
func beNobody(arg string) {
	paths := strings.Split(arg, ",")
	if from := paths[0]; from != "" {
		if err := os.WriteFile(from+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			panic(err)
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		panic(err)
	}
	if err := syscall.Setgid(nobody); err != nil {
		panic(err)
	}
	if err := syscall.Setuid(nobody); err != nil {
		panic(err)
	}
	for _, test := range []struct {
		what   string
		option worker.ProcessOption
	}{
		{"delegated", worker.WithCgroup(paths[1])},
		{"root's", worker.WithCgroup(paths[2])},
		{"files", worker.WithLimits(worker.Limits{Files: 1 << 30})},
		{"memory", worker.WithLimits(worker.Limits{Memory: 1 << 30, Required: true})},
	} {
		p := worker.NewProcess("child", exec.Command("true"), test.option)
		fmt.Println(test.what, p.Start(context.Background()))
		<-p.Gone()
	}
	plain, err := exec.Command(paths[3], "-u").Output()
	fmt.Printf("setuid %q %v\n", plain, err)
	bounded, cmd := newLines(), exec.Command(paths[3], "-u")
	cmd.Stdout = bounded
	p := worker.NewProcess("child", cmd, worker.WithCgroup(paths[4]))
	_ = p.Start(context.Background())
	<-p.Gone()
	fmt.Printf("bounded %q %v\n", bounded.String(), p.Err())
}

// beContained starts a process with a limit in a cgroup, and says whether it is
// there. parents are separated by commas.
func beContained(parents string) {
	in, told, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	cmd := helperCommand("limits", nil)
	cmd.Stdin, cmd.Stdout = in, os.Stdout
	fmt.Println("ready")
	p := worker.NewProcess("child", cmd, worker.WithCgroup(strings.Split(parents, ",")...), worker.WithLimits(worker.Limits{Files: 77}))
	if err := p.Start(context.Background()); err != nil {
		panic(err)
	}
	for _, dir := range p.State().Containment.Cgroups {
		if procs, err := os.ReadFile(dir + "/cgroup.procs"); err != nil || string(procs) != fmt.Sprintln(p.PID()) {
			fmt.Println(dir, "has", string(procs), err)
		}
	}
	_, _ = told.WriteString("go\n")
	<-p.Done()
	fmt.Println(p.Status())
}
