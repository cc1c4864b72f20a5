// Package stop measures what a stop costs clients: how many requests are lost
// when a server is replaced under load, and how long that takes.
package stop
