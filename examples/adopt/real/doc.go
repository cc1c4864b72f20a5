// Package real tests the programs below it: the main functions of podinfo, Envoy's ratelimit
// and trust-manager, moved to an App. They use the packages of these projects.
// docs/migrate/projects.md shows them.
package real
