{{/* The rules of a Role for what kubernetesAPI allows. */}}
{{- define "lifecycle.rules" -}}
{{- with (include "lifecycle.settings" . | fromYaml).kubernetesAPI -}}
{{- if .enabled -}}
# kube.Window
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
# kube.Self
- {apiGroups: [""], resources: [pods], verbs: [get, watch]}
{{- if .evictions }}
# kube.Evictions. RBAC cannot limit them to the pod's own, whose name the cluster chooses.
- {apiGroups: [lifecycle.k8s.io], resources: [evictions], verbs: [list, watch]}
- {apiGroups: [lifecycle.k8s.io], resources: [evictions/status], verbs: [patch]}
{{- end }}
{{- with .lease }}
# kube.Lease. RBAC cannot limit create to a name.
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ . | quote }}], verbs: [get, update]}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
A Role with these rules and its RoleBinding, when kubernetesAPI is enabled. The argument is
a map:

  context         the root context of the chart, or the settings
  name            of both objects
  namespace       of both objects and of the service account
  serviceAccount  its name
  labels          of both objects, a map; none when it is missing
*/}}
{{- define "lifecycle.rbac" -}}
{{- with include "lifecycle.rules" .context -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $.name | quote }}
  namespace: {{ $.namespace | quote }}
  {{- with $.labels }}
  labels: {{- toYaml . | nindent 4 }}
  {{- end }}
rules:
  {{- . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $.name | quote }}
  namespace: {{ $.namespace | quote }}
  {{- with $.labels }}
  labels: {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $.name | quote }}}
subjects:
  - {kind: ServiceAccount, name: {{ $.serviceAccount | quote }}, namespace: {{ $.namespace | quote }}}
{{- end -}}
{{- end -}}
