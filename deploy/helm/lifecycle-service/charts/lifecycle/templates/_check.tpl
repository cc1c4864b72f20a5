{{/* lifecycle.check fails when lifecycle.New would refuse the settings. */}}
{{- define "lifecycle.check" -}}
{{- with include "lifecycle.problems" . -}}
{{- fail (printf "\n%s\n" .) -}}
{{- end -}}
{{- end -}}

{{/*
lifecycle.meant returns the question whether one of the known names was meant: one that is the
same without capitals, dashes and underscores, or with one letter missing, added, changed or
moved by one place.
*/}}
{{- define "lifecycle.meant" -}}
{{- $mine := include "lifecycle.spellings" .name | fromYamlArray -}}
{{- $found := "" -}}
{{- range $known := .known -}}
{{- range include "lifecycle.spellings" $known | fromYamlArray -}}
{{- if and (not $found) (has . $mine) -}}
{{- $found = $known -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with $found -}}{{ printf ": did you mean %s?" . }}{{- end -}}
{{- end -}}

{{/* lifecycle.spellings returns a name, and it with one letter less, as a list in JSON. */}}
{{- define "lifecycle.spellings" -}}
{{- $name := lower . | replace "_" "" | replace "-" "" -}}
{{- $all := list $name -}}
{{- range $i := until (len $name) -}}
{{- $all = append $all (printf "%s%s" (substr 0 $i $name) (substr (int (add1 $i)) (len $name) $name)) -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{/*
lifecycle.problems returns a line for each rule of lifecycle.Config.Validate that the
settings break, and nothing when they break none.
*/}}
{{- define "lifecycle.problems" -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $config := $s.config -}}
{{- $problems := list -}}
{{- $known := include "lifecycle.defaults" . | fromYaml -}}
{{- range $key, $_ := $s -}}
{{- if not (or (hasKey $known $key) (eq $key "global")) -}}
{{- $problems = append $problems (printf "%s is no setting of lifecycle%s" $key (include "lifecycle.meant" (dict "name" $key "known" (keys $known | sortAlpha)))) -}}
{{- end -}}
{{- end -}}
{{- range $key, $bounds := dict "drainSeconds" (list 3 600) "shutdownSeconds" (list 4 3600) "preStopSeconds" (list 0 600) "startSeconds" (list 1 3600) "healthPort" (list 1 65535) -}}
{{- $value := get $s $key -}}
{{- if not (or (kindIs "invalid" $value) (and (regexMatch "^(0|[1-9][0-9]{0,4})$" (toString $value)) (ge (int $value) (first $bounds)) (le (int $value) (last $bounds)))) -}}
{{- $problems = append $problems (printf "%s is %v, want a whole number from %d to %d" $key $value (first $bounds) (last $bounds)) -}}
{{- end -}}
{{- end -}}
{{- $kinds := list -}}
{{- range $key, $kind := dict "config" "map" "file" "map" "kubernetesAPI" "map" "liveKeys" "slice" "scrape" "bool" -}}
{{- if not (kindIs $kind (get $s $key)) -}}
{{- $kinds = append $kinds (printf "%s is %v, want %s" $key (get $s $key) (get (dict "map" "a map" "slice" "a list" "bool" "true or false without quotes") $kind)) -}}
{{- end -}}
{{- end -}}
{{- if not (regexMatch "^[A-Z_][A-Z0-9_]*$" (toString $s.envPrefix)) -}}
{{- $problems = append $problems (printf "envPrefix is %v, want capital letters, digits and _" $s.envPrefix) -}}
{{- end -}}
{{- if $kinds -}}
{{- join "\n" (concat $problems $kinds) -}}
{{- else -}}
{{- $keys := concat (include "lifecycle.liveKeys" . | fromYamlArray) (include "lifecycle.startKeys" . | fromYamlArray) (include "lifecycle.derivedKeys" . | fromYamlArray) -}}
{{- range $key, $_ := $config -}}
{{- if not (has $key $keys) -}}
{{- $problems = append $problems (printf "%s is not a key of the configuration of lifecycle%s" $key (include "lifecycle.meant" (dict "name" $key "known" $keys))) -}}
{{- end -}}
{{- end -}}
{{- $sources := dict "drain_interval" "drainSeconds" "shutdown_grace" "shutdownSeconds" "pre_stop" "preStopSeconds" "health_addr" "the health port" -}}
{{- range include "lifecycle.derivedKeys" . | fromYamlArray -}}
{{- if hasKey $config . -}}
{{- $source := get $sources . | default "drainSeconds and shutdownSeconds" -}}
{{- $problems = append $problems (printf "%s follows from %s: set that, and remove it from the configuration" . $source) -}}
{{- end -}}
{{- end -}}
{{- $longest := 31536000000000000 -}}
{{- range list "drain_quiet" "drain_max" "drain_min" "go_away_after" "accept_quiet" "accept_max" "linger" "unit_slice" "hook_slice" "report_slice" "min_slice" "signal_debounce" "start_timeout" "reload_timeout" "leader_retry" -}}
{{- if not (kindIs "invalid" (index $config .)) -}}
{{- $given := index $config . -}}
{{- $ns := include "lifecycle.nanoseconds" $given | int64 -}}
{{- if lt $ns 0 -}}
{{- $problems = append $problems (printf "%s is %v, want a duration with its unit, such as 5s or 1m30s, or off" . $given) -}}
{{- else if gt $ns $longest -}}
{{- $problems = append $problems (printf "%s is %v, want at most 8760h" . $given) -}}
{{- else if and (eq . "leader_retry") (eq $ns 0) -}}
{{- $problems = append $problems "leader_retry is off, and has to be more than 0" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $key, $words := dict "drain_readiness" (list "down" "serving") "drain_wait" (list "auto" "always" "never") "exit_on_signal" (list "true" "false") "statusz_off" (list "true" "false") -}}
{{- $given := get $config $key | default "" | toString -}}
{{- if and $given (not (has $given $words)) -}}
{{- $problems = append $problems (printf "%s is %s, want %s" $key $given (join " or " $words)) -}}
{{- end -}}
{{- end -}}
{{- with $config.memory_limit_ratio -}}
{{- if or (lt (float64 .) 0.0) (gt (float64 .) 1.0) -}}
{{- $problems = append $problems (printf "memory_limit_ratio is %v, want at most 1" .) -}}
{{- end -}}
{{- end -}}
{{- if not $problems -}}
{{- $problems = include "lifecycle.sums" . | fromYamlArray -}}
{{- end -}}
{{- join "\n" $problems -}}
{{- end -}}
{{- end -}}

{{/* lifecycle.sums returns a list of the sums that do not fit, as JSON. */}}
{{- define "lifecycle.sums" -}}
{{- $s := include "lifecycle.settings" . | fromYaml -}}
{{- $config := $s.config -}}
{{- $n := include "lifecycle.numbers" . | fromYaml -}}
{{- $drain := mul (int64 $n.drain) 1000000000 -}}
{{- $shutdown := mul (int64 $n.shutdown) 1000000000 -}}
{{- $quarter := min 5000000000 (div $shutdown 4) -}}
{{- $t := dict "linger" $quarter "unit_slice" $quarter "hook_slice" $quarter "report_slice" 0 "drain_min" (min 1000000000 $drain) "drain_max" 0 "min_slice" 0 -}}
{{- range $key, $given := $config -}}
{{- if and (hasKey (dict "linger" 1 "unit_slice" 1 "hook_slice" 1 "report_slice" 1 "drain_min" 1 "drain_max" 1 "min_slice" 1 "accept_quiet" 1 "accept_max" 1) $key) (not (kindIs "invalid" $given)) -}}
{{- $_ := set $t $key (include "lifecycle.nanoseconds" $given | int64) -}}
{{- end -}}
{{- end -}}
{{- $inFlight := sub $shutdown (add $t.unit_slice $t.hook_slice $t.report_slice) -}}
{{- $acceptMax := max 0 (min (div (mul $t.linger 3) 2) (sub $inFlight (div $t.linger 2))) -}}
{{- if hasKey $t "accept_max" -}}{{- $acceptMax = $t.accept_max -}}{{- end -}}
{{- $problems := list -}}
{{- $sum := add $t.linger $t.unit_slice $t.hook_slice $t.report_slice -}}
{{- $plus := ternary " + report_slice" "" (gt $t.report_slice 0) -}}
{{- $report := ternary (printf " + %s" (include "lifecycle.seconds" $t.report_slice)) "" (gt $t.report_slice 0) -}}
{{- if gt $sum $shutdown -}}
{{- $problems = append $problems (printf "linger + unit_slice + hook_slice%s is %s + %s + %s%s = %s, and has to fit into shutdown_grace, which is %s: lower them, or raise shutdownSeconds" $plus (include "lifecycle.seconds" $t.linger) (include "lifecycle.seconds" $t.unit_slice) (include "lifecycle.seconds" $t.hook_slice) $report (include "lifecycle.seconds" $sum) (include "lifecycle.seconds" $shutdown)) -}}
{{- end -}}
{{- if gt $t.drain_min $drain -}}
{{- $problems = append $problems (printf "drain_min is %s, longer than the window: drainSeconds is %v" (include "lifecycle.seconds" $t.drain_min) $n.drain) -}}
{{- end -}}
{{- if and (gt $t.drain_max 0) (lt $t.drain_max $drain) -}}
{{- $problems = append $problems (printf "drain_max is %s, shorter than the window: drainSeconds is %v" (include "lifecycle.seconds" $t.drain_max) $n.drain) -}}
{{- end -}}
{{- if and (hasKey $t "accept_quiet") (gt ($t.accept_quiet | default 0 | int64) ($acceptMax | int64)) -}}
{{- $problems = append $problems (printf "accept_quiet is %s, longer than accept_max, which is %s" (include "lifecycle.seconds" $t.accept_quiet) (include "lifecycle.seconds" $acceptMax)) -}}
{{- end -}}
{{- if gt $t.min_slice $t.hook_slice -}}
{{- $problems = append $problems (printf "min_slice is %s, longer than hook_slice, which is %s and which all hooks share" (include "lifecycle.seconds" $t.min_slice) (include "lifecycle.seconds" $t.hook_slice)) -}}
{{- end -}}
{{- toJson $problems -}}
{{- end -}}

{{/* Nanoseconds as a number of seconds with its unit. */}}
{{- define "lifecycle.seconds" -}}
{{- printf "%vs" (divf . 1000000000) -}}
{{- end -}}
