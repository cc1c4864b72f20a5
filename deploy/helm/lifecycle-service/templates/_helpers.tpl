{{- define "app.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "app.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "app.labels" -}}
{{ include "app.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The numbers of a stop, in seconds. All of them follow from drainSeconds. */}}
{{- define "stop.shutdown" -}}
{{ .Values.shutdownSeconds | default (mul 4 .Values.drainSeconds) }}
{{- end }}

{{/* The window, shutdown_grace, the library's margin of 2 s, and 3 s for the kubelet. */}}
{{- define "stop.grace" -}}
{{ add .Values.drainSeconds (include "stop.shutdown" .) 2 3 }}
{{- end }}

{{/* Readiness is asked every second and seen to be down within half of the window. */}}
{{- define "stop.readinessFailures" -}}
{{ max 1 (min 3 (div .Values.drainSeconds 2)) }}
{{- end }}

{{/* A single pod that goes not ready leaves no pod to serve. With local traffic,
     kube-proxy falls back to pods that stop and are still ready (KEP-1669). */}}
{{- define "stop.readiness" -}}
{{- $given := dig "lifecycle" "drain_readiness" "" .Values.config -}}
{{- if $given }}{{ $given }}{{ else if or (le (int .Values.replicas) 1) (eq .Values.service.externalTrafficPolicy "Local") }}serving{{ else }}down{{ end }}
{{- end }}
