{{- define "lifecycle-service.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "lifecycle-service.fullname" -}}
{{- $name := include "lifecycle-service.name" . -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lifecycle-service.selector" -}}
app.kubernetes.io/name: {{ include "lifecycle-service.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "lifecycle-service.labels" -}}
{{- $own := dict "app.kubernetes.io/version" (include "lifecycle-service.version" .) "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $own = set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name (replace "+" "_" .Chart.Version)) -}}
{{- $own = merge $own (include "lifecycle-service.selector" . | fromYaml) -}}
{{- range $name, $values := dict "labels" .Values.labels "podLabels" .Values.podLabels -}}
{{- range $key, $_ := $values -}}
{{- if hasKey $own $key -}}
{{- fail (printf "\n%s has %s, a label that the chart sets: remove it" $name $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- merge $own (.Values.labels | default dict) | toYaml }}
{{- end }}

{{/* The version of the image, as a label can have it. */}}
{{- define "lifecycle-service.version" -}}
{{- $digest := .Values.image.digest | default "" | replace ":" "-" | trunc 19 -}}
{{- $version := .Values.image.tag | default $digest | default .Chart.AppVersion -}}
{{- regexReplaceAll "[^A-Za-z0-9._-]" $version "_" | trunc 63 | trimAll "-_." -}}
{{- end }}

{{- define "lifecycle-service.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "lifecycle-service.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "lifecycle-service.image" -}}
{{- if regexMatch "(:[^/]*|@.*)$" .Values.image.repository -}}
{{- fail (printf "\nimage.repository is %s, with a tag or a digest: set image.tag or image.digest" .Values.image.repository) -}}
{{- end -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{/* The fewest pods that there are. */}}
{{- define "lifecycle-service.replicas" -}}
{{- with .Values.autoscaling -}}
{{- if and .enabled (lt (int .maxReplicas) (int .minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas is %v, below minReplicas, which is %v" .maxReplicas .minReplicas) -}}
{{- end -}}
{{- ternary .minReplicas $.Values.replicas .enabled -}}
{{- end -}}
{{- end }}

{{/* A single pod that goes not ready leaves no pod to serve. With local traffic,
     kube-proxy falls back to pods that stop and are still ready (KEP-1669). */}}
{{- define "lifecycle-service.readiness" -}}
{{- if or (le (int (include "lifecycle-service.replicas" .)) 1) (eq .Values.service.externalTrafficPolicy "Local") }}serving{{ else }}down{{ end }}
{{- end }}

{{/* What config.Load begins the service's variables with. */}}
{{- define "lifecycle-service.prefix" -}}
{{- regexReplaceAll "[^A-Za-z0-9]" (trimSuffix (ext .Values.configFile) .Values.configFile) "_" | upper }}
{{- end }}

{{/* The keys of config that have the address of a port, with its number and its value's name, as JSON. */}}
{{- define "lifecycle-service.addresses" -}}
{{- $all := list -}}
{{- with .Values.addrKey -}}
{{- $all = append $all (dict "key" . "port" $.Values.ports.http "value" "ports.http") -}}
{{- end -}}
{{- range .Values.extraPorts -}}
{{- $key := .addrKey | default "" -}}
{{- $usual := printf "%s_addr" (replace "-" "_" .name) -}}
{{- if and (not $key) (hasKey ($.Values.config | default dict) $usual) -}}
{{- $key = $usual -}}
{{- end -}}
{{- if $key -}}
{{- $all = append $all (dict "key" $key "port" .port "value" (printf "the port of %s in extraPorts" .name)) -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end }}

{{/*
lifecycle-service.strays returns a line for each key of a part of config that its schema, which
config.Schema of the service has made, does not have. lifecycle.check looks at lifecycle.
*/}}
{{- define "lifecycle-service.strays" -}}
{{- $schema := .schema -}}
{{- $path := .path -}}
{{- if kindIs "slice" .part -}}
{{- range $i, $item := .part -}}
{{- include "lifecycle-service.strays" (dict "part" $item "schema" ($schema.items | default dict) "path" (printf "%s[%d]" $path $i)) -}}
{{- end -}}
{{- else if kindIs "map" .part -}}
{{- $known := $schema.properties | default dict -}}
{{- range $key, $value := .part -}}
{{- $at := printf "%s.%s" $path $key -}}
{{- $below := ternary (get $known $key) $schema.additionalProperties (hasKey $known $key) -}}
{{- if kindIs "map" $below -}}
{{- if ne $at "config.lifecycle" -}}
{{- include "lifecycle-service.strays" (dict "part" $value "schema" $below "path" $at) -}}
{{- end -}}
{{- else if and $known (not (hasPrefix "x-" $key)) -}}
{{- printf "%s is not a key of the service%s\n" $at (include "lifecycle.meant" (dict "name" $key "known" (keys $known | sortAlpha))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
lifecycle-service.runSchema returns the JSON Schema of the file of lifecycle-run, when the chart runs
it, and refuses a file that lifecycle-run does not read.
*/}}
{{- define "lifecycle-service.runSchema" -}}
{{- $prefix := include "lifecycle-service.prefix" . -}}
{{- $isRun := regexMatch "(^|/)lifecycle-run$" (first (concat (.Values.command | default list) (list ""))) -}}
{{- if and $isRun (ne $prefix "LIFECYCLE_RUN") -}}
{{- fail (printf "\ncommand is lifecycle-run, which ignores variables that begin with %s: set configFile to lifecycle-run.yaml" $prefix) -}}
{{- end -}}
{{- if has $prefix (list "LIFECYCLE_RUN" "LIFECYCLECTL_RUN") -}}
{{- .Files.Get "lifecycle-run.schema.json" -}}
{{- end -}}
{{- end }}

{{/* lifecycle-service.checkProxy fails when lifecycle-run would not start with the address of its proxy. */}}
{{- define "lifecycle-service.checkProxy" -}}
{{- $prefix := include "lifecycle-service.prefix" . -}}
{{- if and (has $prefix (list "LIFECYCLE_RUN" "LIFECYCLECTL_RUN")) (eq (toString .Values.addrKey) "addr") -}}
{{- $proxy := dig "proxy" "" (.Values.config | default dict) | toString -}}
{{- $isElsewhere := not (empty .Values.envFrom) -}}
{{- range .Values.env -}}
{{- $isElsewhere = or $isElsewhere (eq .name (printf "%s_PROXY" $prefix)) -}}
{{- end -}}
{{- range .Values.args -}}
{{- $isElsewhere = or $isElsewhere (regexMatch "^--?proxy(=|$)" .) -}}
{{- end -}}
{{- if not (or $proxy $isElsewhere) -}}
{{- fail "\nconfig.proxy is not set, so the program itself takes the requests: set addrKey to \"\", or config.proxy to where the program listens" -}}
{{- else if hasSuffix (printf ":%v" .Values.ports.http) $proxy -}}
{{- fail (printf "\nconfig.proxy is %s, and the proxy itself listens on ports.http, which is %v: set ports.http to another port, or let the program listen on one" $proxy .Values.ports.http) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The service's configuration file. */}}
{{- define "lifecycle-service.config" -}}
{{- $config := .Values.config | default dict | deepCopy -}}
{{- with .Values.configSchema | default (include "lifecycle-service.runSchema" .) -}}
{{- $schema := fromJson . -}}
{{- if not (kindIs "map" $schema.properties) -}}
{{- fail "\nconfigSchema has no properties: want the text that config.Schema of the service writes, as with --set-file configSchema=service.schema.json" -}}
{{- end -}}
{{- with include "lifecycle-service.strays" (dict "part" $config "schema" $schema "path" "config") | trim -}}
{{- fail (printf "\n%s" .) -}}
{{- end -}}
{{- end -}}
{{- include "lifecycle-service.checkProxy" . -}}
{{- $lifecycle := $config.lifecycle | default dict -}}
{{- $own := dict "name" (include "lifecycle-service.fullname" .) "drain_readiness" (include "lifecycle-service.readiness" .) "last_stop_file" "/tmp/last-stop.json" -}}
{{- /* One last scrape sees how a stop went. */ -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.shutdownSeconds) -}}
{{- $_ := set $own "report_slice" (printf "%ds" (add 2 (div (add (include "lifecycle.nanoseconds" .Values.serviceMonitor.interval) 999999999) 1000000000))) -}}
{{- end -}}
{{- $_ := set $config "lifecycle" (mergeOverwrite $own $lifecycle) -}}
{{- range include "lifecycle-service.addresses" . | fromYamlArray -}}
{{- $port := int .port -}}
{{- $given := get $config .key -}}
{{- if not $given -}}
{{- $_ := set $config .key (printf ":%d" $port) -}}
{{- else if not (hasSuffix (printf ":%d" $port) (toString $given)) -}}
{{- fail (printf "\nconfig.%s is %q, and %s is %d: set %s to the port on which the service listens, and remove config.%s" .key (toString $given) .value $port .value .key) -}}
{{- else if regexMatch "^(127\\.|localhost:|\\[::1\\])" (toString $given) -}}
{{- fail (printf "\nconfig.%s is %q, an address that only the pod itself reaches" .key (toString $given)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config }}
{{- end }}

{{/* The settings of the library chart. It has the arithmetic of the stop. */}}
{{- define "lifecycle-service.lifecycle" -}}
{{- $file := include "lifecycle-service.config" . | fromYaml -}}
{{- dict
  "drainSeconds" .Values.drainSeconds
  "shutdownSeconds" .Values.shutdownSeconds
  "startSeconds" .Values.startSeconds
  "healthPort" .Values.ports.health
  "envPrefix" (printf "%s_LIFECYCLE" (include "lifecycle-service.prefix" .))
  "config" (omit $file.lifecycle "name")
  "file" $file
  "liveKeys" .Values.liveKeys
  "scrape" .Values.scrape
  "kubernetesAPI" .Values.kubernetesAPI | toYaml }}
{{- end }}

{{/* The variables of the user. Those of lifecycle would win over what the chart has checked. */}}
{{- define "lifecycle-service.env" -}}
{{- $prefix := include "lifecycle-service.prefix" . -}}
{{- range .Values.env -}}
{{- if and (hasPrefix (printf "%s_LIFECYCLE_" $prefix) .name) (not (and .valueFrom (hasSuffix "_ADMIN_TOKEN" .name))) -}}
{{- fail (printf "\nenv has %s, which the chart cannot check: set drainSeconds, shutdownSeconds, ports.health or a key of config.lifecycle" .name) -}}
{{- end -}}
{{- $name := .name -}}
{{- range include "lifecycle-service.addresses" $ | fromYamlArray -}}
{{- if eq $name (printf "%s_%s" $prefix (regexReplaceAll "[^A-Za-z0-9]" .key "_" | upper)) -}}
{{- fail (printf "\nenv has %s: set %s" $name .value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.env }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The arguments of the service. A flag wins over the variables and the file. What stands after
     "--" is a program's that lifecycle-run runs. */}}
{{- define "lifecycle-service.args" -}}
{{- range .Values.args -}}
{{- if eq . "--" -}}
{{- break -}}
{{- else if regexMatch "^--?lifecycle[.]" . -}}
{{- fail (printf "\nargs has %s, which the chart cannot check: set drainSeconds, shutdownSeconds, ports.health or a key of config.lifecycle" .) -}}
{{- else if regexMatch "^--?config(=|$)" . -}}
{{- fail (printf "\nargs has %s: set configFile and config" .) -}}
{{- end -}}
{{- $arg := . -}}
{{- range include "lifecycle-service.addresses" $ | fromYamlArray -}}
{{- if regexMatch (printf "^--?%s(=|$)" (regexReplaceAll "[^A-Za-z0-9]" .key "-")) $arg -}}
{{- fail (printf "\nargs has %s: set %s" $arg .value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- prepend (.Values.args | default list) (printf "-config=/etc/service/%s" .Values.configFile) | toYaml }}
{{- end }}

{{/* The ports of the container. The second listener of a port would fail. */}}
{{- define "lifecycle-service.ports" -}}
{{- $taken := dict (toString .Values.ports.http) "ports.http" -}}
{{- $names := list -}}
{{- range .Values.extraPorts -}}
{{- if has .name $names -}}
{{- fail (printf "\nextraPorts has %s twice: want a name for each" .name) -}}
{{- else if eq (int .port) (int $.Values.service.port) -}}
{{- fail (printf "\nthe port of %s in extraPorts is %v, as service.port is: want a port of its own" .name .port) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range prepend (.Values.extraPorts | default list) (dict "port" .Values.ports.health) -}}
{{- $name := "ports.health" -}}
{{- with .name }}{{ $name = printf "the port of %s in extraPorts" . }}{{ end -}}
{{- $port := toString .port -}}
{{- with get $taken $port -}}
{{- fail (printf "\n%s is %s, as %s is: want a port of its own" $name $port .) -}}
{{- end -}}
{{- $_ := set $taken $port $name -}}
{{- end -}}
- {name: http, containerPort: {{ .Values.ports.http }}}
{{ include "lifecycle.ports" (include "lifecycle-service.lifecycle" . | fromYaml) }}
{{- range .Values.extraPorts }}
- {name: {{ .name | quote }}, containerPort: {{ .port }}}
{{- end }}
{{- end }}

{{/* The volumes of the pod. A Secret that is mounted in several places is one volume. */}}
{{- define "lifecycle-service.volumes" -}}
{{- $own := list "config" "tmp" "bus-user" "bus-operators" -}}
- name: config
  configMap: {name: {{ include "lifecycle-service.fullname" . | quote }}}
- name: tmp
  emptyDir: {sizeLimit: {{ .Values.tmpSize }}}
{{- range .Values.secrets }}
{{- $name := printf "secret-%s" .name }}
{{- if not (has $name $own) }}
- name: {{ $name }}
  secret: {secretName: {{ .name | quote }}}
{{- $own = append $own $name }}
{{- end }}
{{- end }}
{{- range .Values.volumes }}
{{- if has .name $own }}
{{- fail (printf "\nvolumes has %s, a name that the chart uses: want another one" .name) }}
{{- end }}
{{- end }}
{{- with .Values.volumes }}
{{ toYaml . }}
{{- end }}
{{- if .Values.bus.enabled }}
- name: bus-user
  secret: {secretName: {{ .Values.bus.seedSecret | quote }}}
- name: bus-operators
  configMap: {name: {{ .Values.bus.operatorsConfigMap | quote }}}
{{- end }}
{{- end }}

{{/* The name of the service on the bus: that of its App, as presence makes one token of it. */}}
{{- define "lifecycle-service.token" -}}
{{- regexReplaceAll "[^A-Za-z0-9_-]" (include "lifecycle-service.config" . | fromYaml).lifecycle.name "-" | trunc 100 }}
{{- end }}

{{/* What the service needs to know of the fleet's NATS. */}}
{{- define "lifecycle-service.busEnv" -}}
{{- $prefix := include "lifecycle-service.prefix" . -}}
- {name: {{ $prefix }}_NATS_URL, value: {{ .Values.bus.url | quote }}}
- {name: {{ $prefix }}_NATS_NKEY_FILE, value: /etc/bus/user/user.nk}
- {name: {{ $prefix }}_NATS_INBOX_PREFIX, value: {{ printf "_INBOX_%s" (include "lifecycle-service.token" .) | quote }}}
- {name: {{ $prefix }}_OPERATORS_FILE, value: /etc/bus/operators/operators.pem}
{{- end }}

{{/* The ports of the servers in bus.url. */}}
{{- define "lifecycle-service.busPorts" -}}
{{- $ports := list -}}
{{- range splitList "," .Values.bus.url -}}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default "4222" | int) -}}
{{- end -}}
{{- range $ports | uniq }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end }}
