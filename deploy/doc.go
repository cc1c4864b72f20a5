// Package deploy tests the files that are shipped for Kubernetes and its
// operators: the Kustomize base and overlays, the Helm chart, the alerts and the
// dashboard. It has only tests. They use the real programs kustomize, helm, promtool
// and prometheus, which the Makefile builds or fetches into bin/.
package deploy
