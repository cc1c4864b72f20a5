{{/*
The argument of every template of this chart is one of two:

  .       the root context of a chart; its settings are .Values.lifecycle
  a map   the settings themselves, for a chart with several programs:
          {{ include "lifecycle.stop" .Values.worker.stop }}

lifecycle.settings returns the settings with their defaults, as YAML.
*/}}
{{- define "lifecycle.settings" -}}
{{- $settings := include "lifecycle.defaults" . | fromYaml -}}
{{- range $key, $value := ternary (get (get . "Values" | default dict) "lifecycle" | default dict) . (hasKey . "Values") -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $settings $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* README.md explains the settings. */}}
{{- define "lifecycle.defaults" -}}
drainSeconds: 5
shutdownSeconds: null
preStopSeconds: 0
startSeconds: 60
healthPort: 8081
envPrefix: SERVICE_LIFECYCLE
config: {}
file: {}
liveKeys: []
scrape: false
kubernetesAPI: {enabled: false, lease: "", evictions: false}
{{- end -}}

{{/* The keys of lifecycle.Config that a running process takes over from its file. */}}
{{- define "lifecycle.liveKeys" -}}
[drain_interval, drain_quiet, drain_max, drain_min, drain_readiness, drain_wait, go_away_after,
 accept_quiet, accept_max, linger, shutdown_grace, unit_slice, hook_slice, report_slice, min_slice, reload_timeout, exit_on_signal]
{{- end -}}

{{/* The other keys of lifecycle.Config that config may have. */}}
{{- define "lifecycle.startKeys" -}}
[name, signal_debounce, start_timeout, leader_retry, termination_log, last_stop_file, statusz_off, admin_token, admin_token_file, memory_limit_ratio, black_box_dir, upgrade_signal, upgrade_timeout]
{{- end -}}

{{/* The keys that follow from the settings. They are refused in config. */}}
{{- define "lifecycle.derivedKeys" -}}
[drain_interval, shutdown_grace, termination_grace, pre_stop, liveness_grace, startup_grace, health_addr, probe_timeout]
{{- end -}}

{{/*
The numbers of a stop, in seconds: this is the only place that adds them up. The kubelet
gives a pod preStop + window + shutdown + 2 + 3 s. The library needs the 2 s as its margin,
and 3 s are to spare. drain_max, when it is set, may make the window longer, and
report_slice is part of shutdown.

Readiness is asked every second and seen to be down within half of the window.
*/}}
{{- define "lifecycle.numbers" -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $drain := int $s.drainSeconds -}}
{{- $report := include "lifecycle.nanoseconds" (dig "report_slice" "off" $s.config) | int64 -}}
{{- $shutdown := int ($s.shutdownSeconds | default (add (mul 4 $drain) (div (add (max 0 $report) 999999999) 1000000000))) -}}
{{- $preStop := int $s.preStopSeconds -}}
{{- $max := include "lifecycle.nanoseconds" (dig "drain_max" "off" $s.config) | int64 -}}
{{- $window := max $drain (div (add $max 999999999) 1000000000) -}}
{drain: {{ $drain }}, window: {{ $window }}, shutdown: {{ $shutdown }}, preStop: {{ $preStop }}, grace: {{ add $preStop $window $shutdown 2 3 }}, readinessFailures: {{ max 1 (min 3 (div $drain 2)) }}}
{{- end -}}

{{/*
A duration, as a configuration has it, in nanoseconds. "off" is 0, and so is false, which
YAML 1.1 makes of it. -1 is no duration.
*/}}
{{- define "lifecycle.nanoseconds" -}}
{{- $text := toString . | trimPrefix "+" -}}
{{- $part := "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)" -}}
{{- if or (has $text (list "off" "0")) (and (kindIs "bool" .) (not .)) -}}
0
{{- else if not (regexMatch (printf "^(%s)+$" $part) $text) -}}
-1
{{- else -}}
{{- $units := dict "ns" 1 "us" 1000 "µs" 1000 "μs" 1000 "ms" 1000000 "s" 1000000000 "m" 60000000000 "h" 3600000000000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll $part $text -1 -}}
{{- $unit := regexFind "[^0-9.]+$" . -}}
{{- $sum = add $sum (mulf (trimSuffix $unit .) (get $units $unit) | int64) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}
{{- end -}}
