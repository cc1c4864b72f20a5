// Package brokertest starts NATS servers for tests: embedded ones, with or
// without an open port, one in a process of its own, and a cluster of them.
//
// A server in a process of its own is the test binary, started a second time:
// every binary that imports this package can act as a server. Tests can kill and
// pause such a server, and start it again on its stored data.
//
// Begin with [Connect] for one embedded server, and with [StartCluster] for several, which a
// test can kill. It uses package broker.
package brokertest
