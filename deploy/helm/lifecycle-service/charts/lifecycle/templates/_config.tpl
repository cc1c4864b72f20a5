{{/* The keys of config, for the section lifecycle of the service's file. */}}
{{- define "lifecycle.config" -}}
{{- include "lifecycle.check" . -}}
{{- (include "lifecycle.settings" . | fromYaml).config | toYaml -}}
{{- end -}}

{{/* The keys of config as items of the container's env, for a service without a file. */}}
{{- define "lifecycle.configEnv" -}}
{{- include "lifecycle.check" . -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $switches := list "exit_on_signal" "statusz_off" -}}
{{- range $key, $value := $s.config }}
{{- if not (kindIs "invalid" $value) }}
- {name: {{ $s.envPrefix }}_{{ upper $key }}, value: {{ ternary "off" (toString $value) (and (kindIs "bool" $value) (not (has $key $switches))) | quote }}}
{{- end }}
{{- end -}}
{{- end -}}

{{/*
Annotations of the pods. checksum/config is a checksum of the configuration without its live
keys: a change of a live key reaches the running pods, and any other replaces them.
*/}}
{{- define "lifecycle.annotations" -}}
{{- include "lifecycle.check" . -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $file := $s.file | default (dict "lifecycle" $s.config) | deepCopy -}}
{{- $live := $s.liveKeys -}}
{{- range include "lifecycle.liveKeys" . | fromYamlArray -}}
{{- $live = append $live (printf "lifecycle.%s" .) -}}
{{- end -}}
{{- range $live -}}
{{- $path := splitList "." . -}}
{{- $section := $file -}}
{{- range initial $path -}}
{{- $below := get $section . -}}
{{- $section = ternary $below dict (kindIs "map" $below) -}}
{{- end -}}
{{- $_ := unset $section (last $path) -}}
{{- end -}}
checksum/config: {{ toJson $file | sha256sum }}
{{- if $s.scrape }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ $s.healthPort | toString | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- end -}}
