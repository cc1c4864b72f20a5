// Package e2e holds the tests on a real Kubernetes: a Deployment of
// examples/service is rolled, deleted, signalled, starved and broken under load,
// and every request is accounted for. It has only tests. Those of the
// harness itself run with every go test; the others run when E2E is set, as
// deploy/e2e/run does once it has a cluster.
package e2e
