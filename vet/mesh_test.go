package vet_test

import (
	"fmt"
	"strings"
	"testing"
)

// The proxy of a mesh has to stop after the service. vet names the annotation of the mesh,
// whether the proxy is there already or the pod asks for it.
func TestProxiesOfMeshes(t *testing.T) {
	const istio, linkerd, dapr = `sidecar.istio.io/nativeSidecar: "true"`, `config.beta.linkerd.io/proxy-enable-native-sidecar: "true"`, "dapr.io/block-shutdown-duration to 25s"
	for name, tt := range map[string]struct {
		texts  string // labels and annotations of the pods
		list   string // of the container
		proxy  string
		always bool
		want   string // the fix, "" for no finding
	}{
		"istio, asked for":            {texts: `sidecar.istio.io/inject: "true"`, want: istio},
		"istio, native by annotation": {texts: `sidecar.istio.io/inject: "true", sidecar.istio.io/nativeSidecar: "true"`},
		"istio, not asked for":        {texts: `sidecar.istio.io/inject: "false"`},
		"istio, ordinary":             {proxy: "istio-proxy", list: "containers", want: istio},
		"istio, native":               {texts: `sidecar.istio.io/inject: "true"`, proxy: "istio-proxy", list: "initContainers", always: true},
		"linkerd, asked for":          {texts: "linkerd.io/inject: enabled", want: linkerd},
		"linkerd, native":             {texts: `linkerd.io/inject: enabled, config.alpha.linkerd.io/proxy-enable-native-sidecar: "true"`},
		"linkerd, waits":              {texts: `linkerd.io/inject: ingress, config.alpha.linkerd.io/proxy-wait-before-exit-seconds: "25"`},
		"linkerd, waits too short":    {texts: `linkerd.io/inject: ingress, config.alpha.linkerd.io/proxy-wait-before-exit-seconds: "24"`, want: linkerd},
		"linkerd, ordinary":           {proxy: "linkerd-proxy", list: "containers", want: linkerd},
		"dapr, asked for":             {texts: `dapr.io/enabled: "true"`, want: dapr},
		"dapr, waits":                 {texts: `dapr.io/enabled: "true", dapr.io/block-shutdown-duration: 30s`},
		"dapr, ordinary":              {proxy: "daprd", list: "containers", want: dapr},
		"none":                        {texts: "team: shop"},
	} {
		for _, section := range []string{"annotations", "labels"} {
			t.Run(name+", "+section, func(t *testing.T) {
				text := clean
				labels := "      labels: {app: web}\n"
				if section == "labels" {
					text = strings.Replace(text, labels, "      labels: {app: web, "+tt.texts+"}\n", 1)
				} else {
					text = strings.Replace(text, labels, labels+"      annotations: {"+tt.texts+"}\n", 1)
				}
				if text == clean {
					t.Fatal("the manifest has no labels of its pods")
				}
				policy := ""
				if tt.always {
					policy = ", restartPolicy: Always"
				}
				line := fmt.Sprintf("        - {name: %s, image: p%s}\n", tt.proxy, policy)
				switch tt.list {
				case "containers":
					text = strings.Replace(text, "---\n", line+"---\n", 1)
				case "initContainers":
					text = strings.Replace(text, "      containers:\n", "      initContainers:\n"+line+"      containers:\n", 1)
				}
				said := ""
				for _, f := range check(cleanConfig(), text).Findings {
					if f.Rule != "sidecar-stops-first" {
						t.Errorf("another finding: %+v", f)
					}
					said += f.Fix
				}
				if (said == "") != (tt.want == "") || !strings.Contains(said, tt.want) {
					t.Errorf("it says %q, want %q", said, tt.want)
				}
			})
		}
	}
}
