{{/*
A key of a Job's spec, with restartPolicy Never in its pods. A pod that the cluster stops, or that
ends with 128+n because of exit_on_signal, is no failure of the work: the Job starts another
one, and backoffLimit does not count it. A configuration that cannot be used (78) is none that another
pod would mend: the Job fails at once.
*/}}
{{- define "lifecycle.podFailurePolicy" -}}
{{- include "lifecycle.check" . -}}
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: Ignore
      onExitCodes: {operator: In, values: [130, 143]}
    - action: FailJob
      onExitCodes: {operator: In, values: [78]}
{{- end -}}
