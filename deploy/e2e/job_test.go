package e2e

import (
	"context"
	"strings"
	"testing"
)

// TestJobWithAWrongConfigurationFailsAtOnce: with the library chart's policy a program that cannot
// use its configuration fails its Job with the first pod, although the backoffLimit allows six more.
func TestJobWithAWrongConfigurationFailsAtOnce(t *testing.T) {
	c := onCluster(t)
	full(t)
	const name = "misconfigured"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.kubectl(ctx, "delete", "job", name, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	c.apply(t, object{
		"apiVersion": "batch/v1", "kind": "Job",
		"metadata": object{"name": name, "namespace": c.namespace},
		"spec": object{
			"backoffLimit": 6,
			"podFailurePolicy": object{"rules": []object{
				{"action": "Ignore", "onPodConditions": []object{{"type": "DisruptionTarget", "status": "True"}}},
				{"action": "Ignore", "onExitCodes": object{"operator": "In", "values": []int{130, 143}}},
				{"action": "FailJob", "onExitCodes": object{"operator": "In", "values": []int{78}}},
			}},
			"template": object{"spec": object{
				"restartPolicy": "Never",
				"containers": []object{{
					"name": "main", "image": c.service, "imagePullPolicy": "Never",
					"env": []object{{"name": "SERVICE_LIFECYCLE_DRAIN_WAIT", "value": "perhaps"}},
				}},
			}},
		},
	})
	status := func(path string) string { return c.must(t, "get", "job", name, "--output=jsonpath={.status."+path+"}") }
	eventually(t, "the Job to fail", func() bool {
		return strings.Contains(status(`conditions[?(@.type=="Failed")].reason`), "PodFailurePolicy")
	})
	if failed := status("failed"); failed != "1" {
		t.Errorf("%s pods failed, want one", failed)
	}
}
