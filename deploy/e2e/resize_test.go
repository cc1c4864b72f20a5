package e2e

import (
	"testing"
)

// TestResizeOnTheCluster resizes a pod in place: a function of OnResize is told both limits at
// the start, and again within seconds of the change. The container is not started again.
func TestResizeOnTheCluster(t *testing.T) {
	c := onCluster(t)
	full(t)
	d := deployment{name: "resized", image: c.app}
	d.change = func(pod object) {
		pod["containers"].([]object)[0]["resources"] = object{"limits": object{"memory": "64Mi", "cpu": "1"}}
	}
	up := c.deploy(t, d).ready(t)
	pod := up.pods.list()[0]
	type sizes struct{ memory, cpus float64 }
	told := func() (last sizes) {
		for _, record := range up.pods.log.said(pod.uid, "resized") {
			last = sizes{record["memory"].(float64), record["cpus"].(float64)}
		}
		return last
	}
	eventually(t, "the first sizes", func() bool { return told().memory == 64<<20 })
	before := told().cpus // the Go runtime uses two at least, and no more than the node has
	up.must(t, "patch", "pod", pod.name, "--subresource=resize", "--patch",
		`{"spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "128Mi", "cpu": "1"}, "limits": {"memory": "128Mi", "cpu": "1"}}}]}}`)
	eventually(t, "the new sizes", func() bool { return told().memory == 128<<20 })
	if now := told(); now.cpus != before || before < 1 {
		t.Errorf("it has %v processors, and had %v", now.cpus, before)
	}
	if restarts := up.must(t, "get", "pod", pod.name, "--output=jsonpath={.status.containerStatuses[0].restartCount}"); restarts != "0" {
		t.Errorf("the container was started again: %s", restarts)
	}
}
