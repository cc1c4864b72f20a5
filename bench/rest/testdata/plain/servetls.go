//go:build servetls

package main

import (
	"net"
	"net/http"
)

// serve speaks TLS when it is configured, as App.Serve does. The linker keeps the
// server's side of TLS also when it is not.
func serve(s *http.Server, ln net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(ln, "", "")
	}
	return s.Serve(ln)
}
