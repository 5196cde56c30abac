{{- define "headgate.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "headgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "headgate.name" .) .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "headgate.name" .) | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: {{ include "headgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headgate.labels" -}}
{{ include "headgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "headgate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end }}

{{- /* What can't work is refused here, with what would: a pod that does not start says it later and less well. */ -}}
{{- define "headgate.check" -}}
{{- $c := .Values.config -}}
{{- if not $c.pools }}{{ fail "config.pools is empty: name the engines and the classes, as in docs/kubernetes.md" }}{{ end -}}
{{- if not (or $c.keys $c.rules $c.anonymous $c.keys_file .Values.keysFile.secret) }}{{ fail "nobody may call: give config.keys, config.rules, config.anonymous or keysFile.secret" }}{{ end -}}
{{- $admin := default dict $c.admin -}}
{{- if not (or $admin.keys $admin.open) }}{{ fail "config.admin.keys is empty: others than the pod reach the admin listener, so it asks for a key (headgate key), or config.admin.open: true says that it does not" }}{{ end -}}
{{- if or $c.listen $admin.listen }}{{ fail "config.listen and config.admin.listen are the chart's: leave them out" }}{{ end -}}
{{- if (default dict $c.limits).drain_timeout }}{{ fail "config.limits.drain_timeout: give drainSeconds, from which the grace period follows" }}{{ end -}}
{{- $control := default dict $c.control -}}
{{- $fleet := or .Values.etcd.endpoints (eq (default "" $control.store) "etcd") -}}
{{- if and (gt (int .Values.replicas) 1) (not $fleet) }}{{ fail (printf "replicas is %d, and several replicas share their engines by grants: give etcd.endpoints, or config.control" (int .Values.replicas)) }}{{ end -}}
{{- if and $control.replicas (lt (int $control.replicas) (int .Values.replicas)) }}{{ fail (printf "config.control.replicas is %d, and there are %d replicas: at least as many" (int $control.replicas) (int .Values.replicas)) }}{{ end -}}
{{- if and .Values.etcd.endpoints .Values.etcd.username (not (default dict .Values.etcd.passwordSecret).name) }}{{ fail (printf "etcd.username is %s, and etcd.passwordSecret.name is empty: name the secret with the password" .Values.etcd.username) }}{{ end -}}
{{- if and .Values.controller.enabled (not $fleet) }}{{ fail "controller.enabled: there is no fleet to lead without etcd.endpoints or config.control" }}{{ end -}}
{{- $stateful := eq .Values.workload "StatefulSet" -}}
{{- range $c.pools }}{{ if and (default dict .control).survival (not $stateful) }}{{ fail (printf "pool %s has a survival floor, which is kept for a replica's name: workload has to be StatefulSet" .name) }}{{ end }}{{ end -}}
{{- if .Values.forward.enabled -}}
{{- if not (and $fleet $stateful .Values.forward.secret.name) }}{{ fail "forward needs etcd.endpoints, workload: StatefulSet and forward.secret.name: replicas call each other by their pods' names" }}{{ end -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (eq .Values.storage.type "claim") (or (not $stateful) .Values.storage.existingClaim) }}{{ fail "storage.type: claim with several replicas: workload has to be StatefulSet, without existingClaim, so that each has a claim of its own" }}{{ end -}}
{{- if and (gt (int .Values.replicas) 1) $c.batch (not (or .Values.postgresql.urlSecret.name $c.batch.postgres_env)) }}{{ fail "config.batch with several replicas: give postgresql.urlSecret.name, or each replica has batches of its own that clients can't find" }}{{ end -}}
{{- if and (gt (int .Values.replicas) 1) $c.batch (not (default dict $c.batch).bucket) }}{{ fail "config.batch with several replicas: give config.batch.bucket, since files have to be the same for all" }}{{ end -}}
{{- if and .Values.enginePolicy.enabled (not .Values.enginePolicy.podLabels) }}{{ fail "enginePolicy.podLabels is empty, which would be every pod of the namespace" }}{{ end -}}
{{- end }}

{{- /* The configuration file: what the values say, below what the cluster says. */ -}}
{{- define "headgate.config" -}}
{{- $c := deepCopy .Values.config -}}
{{- $_ := set $c "version" (default 1 $c.version) -}}
{{- $_ := set $c "listen" ":8080" -}}
{{- $admin := default dict $c.admin -}}
{{- $_ := set $admin "listen" ":9090" -}}
{{- if .Values.adminTLS.secret }}{{ $_ := set $admin "tls" (mergeOverwrite (dict "cert" "/etc/headgate/admin-tls/tls.crt" "key" "/etc/headgate/admin-tls/tls.key") (default dict $admin.tls)) }}{{ end -}}
{{- $_ := set $c "admin" $admin -}}
{{- $limits := default dict $c.limits -}}
{{- $_ := set $limits "drain_timeout" (printf "%ds" (int .Values.drainSeconds)) -}}
{{- $_ := set $c "limits" $limits -}}
{{- if .Values.tls.secret }}{{ $_ := set $c "tls" (mergeOverwrite (dict "cert" "/etc/headgate/tls/tls.crt" "key" "/etc/headgate/tls/tls.key") (default dict $c.tls)) }}{{ end -}}
{{- if .Values.keysFile.secret }}{{ $_ := set $c "keys_file" (printf "/etc/headgate/keys/%s" .Values.keysFile.key) }}{{ end -}}
{{- if .Values.etcd.endpoints -}}
{{- /* A rolling update has one more for a time. */ -}}
{{- $control := dict "store" "etcd" "endpoints" .Values.etcd.endpoints "replicas" (add1 (int .Values.replicas)) -}}
{{- if .Values.etcd.username }}{{ $_ := set $control "username" .Values.etcd.username }}{{ $_ := set $control "password_env" "HEADGATE_ETCD_PASSWORD" }}{{ end -}}
{{- if .Values.etcd.tlsSecret }}{{ $_ := set $control "tls" (dict "ca" "/etc/headgate/etcd-tls/ca.crt" "cert" "/etc/headgate/etcd-tls/tls.crt" "key" "/etc/headgate/etcd-tls/tls.key") }}{{ end -}}
{{- $_ := set $c "control" (mergeOverwrite $control (default dict $c.control)) -}}
{{- end -}}
{{- if .Values.forward.enabled }}{{ $_ := set $c.control "forward" (mergeOverwrite (dict "address" (printf "%s://{replica}.%s-peers.%s:8080" (ternary "https" "http" (ne .Values.tls.secret "")) (include "headgate.fullname" .) .Release.Namespace) "secret_env" "HEADGATE_FLEET_SECRET") (default dict $c.control.forward)) }}{{ end -}}
{{- if .Values.controller.enabled }}{{ $_ := set $c.control "campaign" false }}{{ end -}}
{{- if .Values.postgresql.urlSecret.name }}{{ $_ := set $c "batch" (mergeOverwrite (dict "postgres_env" "HEADGATE_POSTGRES_URL") (default dict $c.batch)) }}{{ end -}}
{{- toYaml $c -}}
{{- end }}

{{- /* A pod: of the replicas, or of the controllers. */ -}}
{{- define "headgate.pod" -}}
{{- $root := .root -}}
{{- with $root.Values -}}
metadata:
  labels:
    {{- include "headgate.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
    {{- with .podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "headgate.fullname" $root }}
  automountServiceAccountToken: false # it asks the cluster for nothing
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .drainSeconds .preStopSeconds 20 }}
  securityContext: {{- toYaml .podSecurityContext | nindent 4 }}
  {{- with .imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if .affinity }}
  affinity: {{- toYaml .affinity | nindent 4 }}
  {{- else if gt (int $.replicas) 1 }}
  affinity:
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels:
                {{- include "headgate.selector" $root | nindent 16 }}
                app.kubernetes.io/component: {{ $.component }}
  {{- end }}
  containers:
    - name: headgate
      image: {{ include "headgate.image" $root | quote }}
      imagePullPolicy: {{ .image.pullPolicy }}
      args: [{{ $.command }}, -c, /etc/headgate/headgate.yaml]
      ports:
        {{- if eq $.command "serve" }}
        - {name: http, containerPort: 8080}
        {{- end }}
        - {name: admin, containerPort: 9090}
      {{- $variables := concat (list) .env -}}
      {{- if and .etcd.endpoints .etcd.username }}{{ $variables = append $variables (dict "name" "HEADGATE_ETCD_PASSWORD" "valueFrom" (dict "secretKeyRef" .etcd.passwordSecret)) }}{{ end }}
      {{- if .forward.enabled }}{{ $variables = append $variables (dict "name" "HEADGATE_FLEET_SECRET" "valueFrom" (dict "secretKeyRef" .forward.secret)) }}{{ end }}
      {{- if .postgresql.urlSecret.name }}{{ $variables = append $variables (dict "name" "HEADGATE_POSTGRES_URL" "valueFrom" (dict "secretKeyRef" .postgresql.urlSecret)) }}{{ end }}
      {{- with $variables }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      # Never /readyz for liveness: a replica without a lease is not ready, and restarting it makes nothing better.
      livenessProbe:
        httpGet: {path: /healthz, port: admin, scheme: {{ ternary "HTTPS" "HTTP" (ne .adminTLS.secret "") }}}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: admin, scheme: {{ ternary "HTTPS" "HTTP" (ne .adminTLS.secret "") }}}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      {{- if and (gt (int .preStopSeconds) 0) (eq $.command "serve") }}
      lifecycle:
        preStop:
          sleep: {seconds: {{ .preStopSeconds }}}
      {{- end }}
      securityContext: {{- toYaml .securityContext | nindent 8 }}
      resources: {{- toYaml .resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/headgate, readOnly: true}
        {{- if and (ne .storage.type "none") (eq $.command "serve") }}
        - {name: storage, mountPath: {{ .storage.path }}}
        {{- end }}
  volumes:
    # One volume for all that is below /etc/headgate: a volume can't be mounted inside another that is read-only.
    - name: config
      projected:
        defaultMode: 0440
        sources:
          - configMap: {name: {{ include "headgate.fullname" $root }}}
          {{- if .keysFile.secret }}
          - secret: {name: {{ .keysFile.secret }}, items: [{key: {{ .keysFile.key }}, path: keys/{{ .keysFile.key }}}]}
          {{- end }}
          {{- if .tls.secret }}
          - secret: {name: {{ .tls.secret }}, items: [{key: tls.crt, path: tls/tls.crt}, {key: tls.key, path: tls/tls.key}]}
          {{- end }}
          {{- if .adminTLS.secret }}
          - secret: {name: {{ .adminTLS.secret }}, items: [{key: tls.crt, path: admin-tls/tls.crt}, {key: tls.key, path: admin-tls/tls.key}]}
          {{- end }}
          {{- if .etcd.tlsSecret }}
          - secret: {name: {{ .etcd.tlsSecret }}, items: [{key: ca.crt, path: etcd-tls/ca.crt}, {key: tls.crt, path: etcd-tls/tls.crt}, {key: tls.key, path: etcd-tls/tls.key}]}
          {{- end }}
          {{- with .files }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
    {{- if eq $.command "serve" }}
    {{- if eq .storage.type "emptyDir" }}
    - {name: storage, emptyDir: {sizeLimit: {{ .storage.size }}}}
    {{- else if and (eq .storage.type "claim") (eq .workload "Deployment") }}
    - {name: storage, persistentVolumeClaim: {claimName: {{ default (include "headgate.fullname" $root) .storage.existingClaim }}}}
    {{- else if and (eq .storage.type "claim") .storage.existingClaim }}
    - {name: storage, persistentVolumeClaim: {claimName: {{ .storage.existingClaim }}}}
    {{- end }}
    {{- end }}
{{- end -}}
{{- end }}
