//go:build servetls

package main

import (
	"net"
	"net/http"
)

// serve serves with TLS when TLS is configured, as App.Serve does. So the linker keeps the
// server's side of TLS, also in a program that configures none.
func serve(s *http.Server, ln net.Listener) error {
	if s.TLSConfig != nil {
		return s.ServeTLS(ln, "", "")
	}
	return s.Serve(ln)
}
