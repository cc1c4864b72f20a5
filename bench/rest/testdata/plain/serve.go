//go:build !servetls

package main

import (
	"net"
	"net/http"
)

func serve(s *http.Server, ln net.Listener) error { return s.Serve(ln) }
