{{/*
lifecycle.badStops is a query of Prometheus: how many stops in the last minutes cut requests,
abandoned a part, or ended by SIGKILL. It is 0 when there were none and the service is
scraped, and has no value when it is not. The argument is a map:

  selector  label matchers of the service's series: namespace="shop",job="web-health"
  minutes   how far the query looks back
*/}}
{{- define "lifecycle.badStops" -}}
{{- $range := printf "{%s}[%vm]" .selector .minutes -}}
count(
  (
    max_over_time(lifecycle_last_stop_requests_cut{{ $range }}) > 0
      or max_over_time(lifecycle_last_stop_abandoned{{ $range }}) > 0
      or max without (ending) (max_over_time(lifecycle_last_stop_ending{ending=~"killed|interrupted",{{ .selector }}}[{{ .minutes }}m])) > 0
  )
  and time() - max_over_time(lifecycle_last_stop_told_timestamp_seconds{{ $range }}) < {{ mul .minutes 60 }}
)
or 0 * max(max_over_time(lifecycle_app_info{{ $range }}))
{{- end -}}
