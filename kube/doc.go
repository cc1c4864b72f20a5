// Package kube uses what only Kubernetes knows:
//
//	cluster, err := kube.InCluster()
//	if err != nil {
//		return err
//	}
//	lease, err := cluster.Lease(kube.LeaseConfig{Name: "sync"})
//	if err != nil {
//		return err
//	}
//	app.Lead("sync", lease, sync)
//
// The package speaks the API's own JSON over net/http, with the token of the pod's
// service account, and needs no other module. Each request has a timeout, and each
// answer a limit. A feature for which the permission is missing, or that runs outside a
// cluster, does nothing but write one log line that names the object and the rule that
// the Role lacks. The App then behaves as it does without the feature.
package kube
