package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// server is one process of folder server.
type server struct {
	Addr   string `json:"addr"`
	Health string `json:"health"` // its /readyz answers 503 once the server stops

	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{} // closed when the process has ended
	at    time.Time     // when it ended
}

// startServer starts a server and returns when it serves. name names its log.
func (b *bench) startServer(kind, name string, tls, grpc bool) (*server, error) {
	args := []string{"-kind", kind}
	if tls {
		args = append(args, "-cert", filepath.Join(b.temp, "server.pem"))
	}
	if grpc {
		args = append(args, "-grpc")
	}
	log, err := os.Create(filepath.Join(b.output, name+".log"))
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.CommandContext(context.Background(), b.server, args...), log: log, ended: make(chan struct{})}
	s.cmd.Stderr = log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	group(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	go func() {
		_ = s.cmd.Wait()
		s.at = time.Now()
		close(s.ended)
	}()
	if err != nil {
		s.kill()
		return nil, fmt.Errorf("start %s: %w: see %s", name, err, log.Name())
	}
	return s, nil
}

// terminate sends SIGTERM.
func (s *server) terminate() error { return s.cmd.Process.Signal(syscall.SIGTERM) }

// kill ends the process if it still runs.
func (s *server) kill() {
	_ = killGroup(s.cmd)
	<-s.ended
	s.log.Close()
}
