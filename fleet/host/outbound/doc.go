// Package outbound sends HTTP requests for code that is not trusted. The caller says
// which URLs it may ask for. As in package fetch, the addresses are checked when they are
// dialled, and each redirect is checked like the first request.
//
// Begin with [New], which takes a [Policy], and [Client.Do]; pattern.go has the patterns of
// URLs. It uses package fetch.
package outbound
