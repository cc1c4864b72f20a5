//go:build unix

package httpdrain

import (
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkHTTP2 measures what a request over HTTP/2 costs the whole process, client and
// server, with this package and without it. It measures processor time, which does not
// depend on how busy the machine is.
func BenchmarkHTTP2(b *testing.B) {
	for _, proto := range []string{"http", "https"} {
		rig := siege{proto: proto, prepare: func(srv *http.Server) {
			srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		}}
		b.Run(proto+"/bare", func(b *testing.B) {
			srv, transport := rig.server(b)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			served := make(chan error, 1)
			go func() {
				if proto == "https" {
					served <- srv.ServeTLS(ln, "", "")
				} else {
					served <- srv.Serve(ln)
				}
			}()
			posts(b, transport, proto+"://"+ln.Addr().String())
			srv.Close()
			<-served
		})
		b.Run(proto+"/passed", func(b *testing.B) {
			srv, transport := rig.server(b)
			s := start(b, srv, Config{})
			posts(b, transport, proto+"://"+s.Addr().String())
		})
	}
}

// posts sends requests, some at a time on one connection.
func posts(b *testing.B, transport *http.Transport, url string) {
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	b.ReportAllocs()
	b.SetParallelism(4)
	began := processorTime()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			res, err := client.Post(url, "text/plain", strings.NewReader("body"))
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	})
	b.ReportMetric(float64(processorTime()-began)/float64(b.N), "cpu-ns/op")
}

// processorTime returns the processor time that this process has used.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
