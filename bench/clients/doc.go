// Package clients counts the requests that clients lose when a server stops, for the
// clients and proxies that people have. It measures an App with the default Config
// beside a server that sleeps 5 s and then calls http.Server.Shutdown, with the same
// handler (folder server). Both are processes that a real SIGTERM stops.
//
// The measurements are tests. A Cell is one of them: a Client, a Scenario and a kind of
// server; begin with cell_test.go. The clients are small programs in testdata. They use
// their libraries as the READMEs show, with default settings and without retries of their
// own. "make clients" runs TestMatrix, which writes [Results] to docs/reference/clients.json, and
// cmd/clientdoc, which writes docs/reference/clients.md.
//
// TestMatrix measures single cells in seconds, in the folder bench:
//
//	go test ./clients -run TestMatrix -v -args -only '^undici 7 request/lag 2s/ours$'
//
// With -server it takes a server that was built elsewhere, from another checkout of the
// library for one, and with -output it keeps the logs. With GODEBUG=http2debug=2 the server
// logs the frames of HTTP/2, and with SSLKEYLOGFILE it writes the keys with which
// tshark reads a capture. With -results, single cells replace those in the file.
package clients
