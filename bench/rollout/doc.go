// Package rollout simulates what a rolling update of a large Deployment costs its
// clients. It is a discrete-event simulation: pods are replaced as a Deployment
// replaces them, each stop spreads to the nodes with a delay, and clients with
// connections of several kinds go on sending requests. The package counts how each
// request ends.
//
// A stopping pod follows the choreography of this library (docs/reference/guarantees/app.md, R13 to
// R18), or one that it is compared with: Shutdown at SIGTERM, or a preStop hook that
// sleeps before it. docs/reference/scale.md has the answers, and cmd/scaledoc writes that page.
//
// Only pods that stop are simulated request by request, because a pod that runs loses
// none. What the other pods answer in the meantime is counted by its rate.
//
// Everything random comes from Scenario.Seed. Two runs of one Scenario give the same
// Result. Runs that differ in the Stop alone meet the same arrivals and delays.
package rollout
