package main

import "fmt"

// restBench is in the results when package rest was measured.
const restBench = "Rest/peer=" + us

// The same service with net/http, and one that may serve TLS, as ours may.
const (
	plainRest = "Rest/peer=net-http"
	tlsRest   = "Rest/peer=net-http-tls"
)

var restTargets = []target{
	{
		of:   restBench,
		text: "A service that has nothing to do takes at most 1 MB more memory than with net/http alone",
		judge: func(r *results) (string, verdict) {
			more := beyond(r, plainRest, "rss-B")
			return fmt.Sprintf("%s MB, of which %s MB belong to no file", digits(more), digits(beyond(r, plainRest, "anon-B"))), atMost(more, 1)
		},
		reason: "A service that has nothing to do takes over 1 MB more resident memory. Most of that is pages of the larger program, which the kernel maps around each page that is used. They are never written, all processes of the program share them, and the kernel may drop them.",
	},
	{
		of:   restBench,
		text: "Its program is at most 1.2 MB larger",
		judge: func(r *results) (string, verdict) {
			more := beyond(r, plainRest, "binary-B")
			return fmt.Sprintf("%s MB; %s MB more than one that may serve TLS", digits(more), digits(beyond(r, tlsRest, "binary-B"))), atMost(more, 1.2)
		},
		reason: "The program is over 1.2 MB larger than one that serves with net/http alone. A server of an App serves TLS when its TLSConfig has a certificate, so the linker keeps the server's side of TLS and the signatures that it needs. A program that may serve TLS without an App has them too.",
	},
	{
		of:   restBench,
		text: "Nothing wakes it when no periodic check is registered",
		judge: func(r *results) (string, verdict) {
			ours := r.get(restBench, "wakeups/s").Center
			return digits(ours) + " context switches a second", atMost(ours, r.get(plainRest, "wakeups/s").Center)
		},
		reason: "A service that has nothing to do is woken: a timer or a poll without need.",
	},
}

// beyond returns how many MB our service takes more than another.
func beyond(r *results, than, unit string) float64 {
	return (r.get(restBench, unit).Center - r.get(than, unit).Center) / 1e6
}

func rests(r *results, p func(string, ...any)) {
	p("\n| | stripped binary | resident memory | not of a file | wakeups | goroutines | exec until it runs |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, row := range [][2]string{{"net/http", plainRest}, {"net/http, may serve TLS", tlsRest}, {us, restBench}} {
		mb := func(unit string) string { return digits(r.get(row[1], unit).Center / 1e6) }
		p("| %s | %s MB | %s MB | %s MB | %s a second | %s | %s ± %s |", row[0], mb("binary-B"), mb("rss-B"), mb("anon-B"),
			digits(r.get(row[1], "wakeups/s").Center), digits(r.get(row[1], "goroutines").Center),
			duration(r.get(row[1], "ready-sec").Center), spread(r.get(row[1], "ready-sec")))
	}
	if at := r.config["rest"]; at != "" {
		p("\nThis section alone was measured on %s.", at)
	}
}
