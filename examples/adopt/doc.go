// Package adopt tests the programs below it: services and operators on other libraries, and
// the same moved to this one, which docs/guides/migrating/README.md shows; below real/ the main functions
// of podinfo, Envoy's ratelimit and trust-manager, which docs/guides/migrating/projects.md shows.
// They use the packages of these projects.
package adopt
