// Package upgrade measures what clients lose while a process is replaced by a new one, on one
// machine and behind no load balancer.
package upgrade
