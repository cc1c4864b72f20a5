package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestHostedCodeIsContainedInARestrictedPod runs the attacks on hosted code inside a pod
// of the restricted standard: without capabilities, as an unprivileged user, on a
// read-only root, under the container runtime's own filter. It fails when a part of the
// containment is missing there.
func TestHostedCodeIsContainedInARestrictedPod(t *testing.T) {
	full(t)
	c := onCluster(t)
	image := os.Getenv("E2E_ISOLATE_IMAGE")
	if image == "" {
		t.Fatal("E2E_ISOLATE_IMAGE is not set: start deploy/e2e/run, it sets it")
	}
	c.apply(t, object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "isolate"}, "spec": object{
		"restartPolicy": "Never", "automountServiceAccountToken": false,
		"securityContext": object{"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": object{"type": "RuntimeDefault"}},
		"containers": []object{{
			"name": "isolate", "image": image, "imagePullPolicy": "Never",
			"args":            []string{"-test.run", "TestNothingOfTheFloorIsMissing|TestAttacksEndTheirChild", "-test.v", "-test.timeout", "5m"},
			"securityContext": object{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": object{"drop": []string{"ALL"}}},
			"resources":       object{"limits": object{"memory": "1Gi"}},
			"volumeMounts":    []object{{"name": "tmp", "mountPath": "/tmp"}},
		}},
		"volumes": []object{{"name": "tmp", "emptyDir": object{}}},
	}})
	defer c.must(t, "delete", "pod", "isolate", "--wait=false")
	phase := ""
	eventually(t, "the tests in the pod end", func() bool {
		phase = strings.TrimSpace(c.must(t, "get", "pod", "isolate", "--output", "jsonpath={.status.phase}"))
		return phase == "Succeeded" || phase == "Failed"
	})
	if phase != "Succeeded" {
		t.Errorf("the pod %s:\n%s", phase, c.must(t, "logs", "isolate"))
	}
}
