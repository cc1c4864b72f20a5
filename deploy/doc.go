// Package deploy holds the tests of what is shipped for Kubernetes and its
// operators: the Kustomize base and overlays, the Helm chart, the alerts and the
// dashboard. It has no code but its tests. They use the real programs, which make
// builds or fetches into bin/: kustomize, helm, promtool and prometheus.
package deploy
