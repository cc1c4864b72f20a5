// Package kube uses what only Kubernetes knows. Each feature is an option, and off
// without it:
//
//	cluster, err := kube.New(kube.Config{})
//	if err != nil {
//		return err
//	}
//	app, err := lifecycle.New(cfg,
//		cluster.Window(kube.WindowConfig{}), // the drain window ends when the cluster has noticed
//		cluster.Self(kube.SelfConfig{}),     // the pod's own manifest has to fit the configuration
//		cluster.Evictions(kube.EvictionConfig{Wait: tasks.Wait}), // a node's drain waits for long tasks
//	)
//	if err != nil {
//		return err
//	}
//	lease, err := cluster.Lease(kube.LeaseConfig{Name: "sync"})
//	if err != nil {
//		return err
//	}
//	app.Lead("sync", lease, sync) // in one pod at a time
//
// The package speaks the API's own JSON over net/http, with the token of the pod's
// service account, and needs no other module. Each request has a timeout. A feature
// without its permission, or outside a cluster, does nothing but write one log line,
// which names the object and the rule that the Role lacks. The App then behaves as it
// does without the feature.
//
// These rules give all permissions. deploy/ has them as a component of Kustomize and as
// a value of the chart; both are off by default.
//
//	Lease         coordination.k8s.io  leases          get, create, update
//	Window        discovery.k8s.io     endpointslices  list, watch
//	Self          ""                   pods            get, watch
//	Evictions     lifecycle.k8s.io     evictions       list, watch
//	                                   evictions/status  patch
//	Ended         ""                   pods            get
package kube
