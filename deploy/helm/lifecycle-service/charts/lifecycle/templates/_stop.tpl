{{/*
The keys of a pod's spec. The kubelet counts terminationGracePeriodSeconds from the start of
the stop, and sends SIGKILL at its end.
*/}}
{{- define "lifecycle.stop" -}}
{{- include "lifecycle.check" . -}}
terminationGracePeriodSeconds: {{ (include "lifecycle.numbers" . | fromYaml).grace }}
{{- with (include "lifecycle.settings" . | fromYaml).kubernetesAPI }}
{{- if and .enabled .evictions }}
# Before a controller of the pod's, which has 10000.
evictionResponders: [{name: lifecycle.pleme.io/app, priority: 20000}]
{{- end }}
{{- end }}
{{- end -}}

{{/*
Items of the container's env. A pod keeps its grace and its probes as long as it lives, so
what has to agree with them stands in the pod's template: a change replaces the pods.
*/}}
{{- define "lifecycle.env" -}}
{{- include "lifecycle.check" . -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $n := include "lifecycle.numbers" . | fromYaml -}}
- {name: {{ $s.envPrefix }}_DRAIN_INTERVAL, value: {{ $n.drain }}s}
- {name: {{ $s.envPrefix }}_SHUTDOWN_GRACE, value: {{ $n.shutdown }}s}
- {name: {{ $s.envPrefix }}_TERMINATION_GRACE, value: {{ $n.grace }}s}
{{- if $n.preStop }}
- {name: {{ $s.envPrefix }}_PRE_STOP, value: {{ $n.preStop }}s}
{{- end }}
- {name: {{ $s.envPrefix }}_HEALTH_ADDR, value: ":{{ $s.healthPort }}"}
{{- if $s.kubernetesAPI.enabled }}
- {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- end }}
{{- end -}}

{{/* The container's preStop hook, when preStopSeconds is more than 0. */}}
{{- define "lifecycle.preStop" -}}
{{- include "lifecycle.check" . -}}
{{- with (include "lifecycle.numbers" . | fromYaml).preStop -}}
lifecycle:
  preStop: {sleep: {seconds: {{ . }}}}
{{- end -}}
{{- end -}}

{{/* Items of the container's ports. The probes ask the port by its name. */}}
{{- define "lifecycle.ports" -}}
- {name: health, containerPort: {{ (include "lifecycle.settings" . | fromYaml).healthPort }}}
{{- end -}}

{{/* The container's three probes. */}}
{{- define "lifecycle.probes" -}}
{{- include "lifecycle.check" . -}}
startupProbe:
  httpGet: {path: /startupz, port: health}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: {{ (include "lifecycle.settings" . | fromYaml).startSeconds }}
livenessProbe:
  httpGet: {path: /livez, port: health}
  periodSeconds: 10
  timeoutSeconds: 2
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: {{ (include "lifecycle.numbers" . | fromYaml).readinessFailures }}
{{- end -}}
