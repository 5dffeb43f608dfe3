{{/* The scheduler's container: frontends, core and their supervisor. */}}
{{- define "octavo.scheduler" -}}
name: scheduler
{{ include "octavo.image" (dict "image" .Values.scheduler.image "root" .) }}
command: [python, -m, scheduler_svc]
args:
  {{- include "octavo.sharedArgs" . | nindent 2 }}
  {{- with include "octavo.servedName" . }}
  - --served-model-name={{ . }}
  {{- end }}
  - --replica=$(POD_NAME)
  - --workers=external
  - --frontends={{ .Values.scheduler.frontends }}
  - --host=0.0.0.0
  - --port={{ .Values.ports.grpc }}
  - --metrics-host=0.0.0.0
  - --metrics-port={{ .Values.ports.metrics }}
  - --admin-port={{ .Values.ports.admin }}
  - --drain-limit={{ .Values.drain.limitSeconds }}
  {{- if .Values.tls.secretName }}
  - --tls-cert=/etc/octavo/tls/tls.crt
  - --tls-key=/etc/octavo/tls/tls.key
  {{- end }}
  {{- if .Values.tls.clientCaSecretName }}
  - --tls-client-ca=/etc/octavo/client-ca/ca.crt
  {{- end }}
  {{- if .Values.apiKeys.secretName }}
  - --api-keys-file=/etc/octavo/api-keys/{{ .Values.apiKeys.key }}
  {{- end }}
  {{- if .Values.tracing.enabled }}
  - --tracing
  {{- end }}
  {{- with .Values.scheduler.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- include "octavo.environment" . | nindent 2 }}
  {{- if .Values.tracing.enabled }}
  - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .Values.tracing.endpoint | quote }}}
  - {name: OTEL_EXPORTER_OTLP_PROTOCOL, value: {{ .Values.tracing.protocol }}}
  - {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
  - {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .Values.tracing.sampleRatio | quote }}}
  {{- end }}
  {{- with .Values.scheduler.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.scheduler.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: grpc, containerPort: {{ .Values.ports.grpc }}}
  - {name: metrics, containerPort: {{ .Values.ports.metrics }}}
# Liveness and readiness start once this succeeded: loading a model never gets a pod killed before startupSeconds.
startupProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ div (add .Values.probes.startupSeconds 4) 5 }}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{- if eq .Values.probes.readiness "grpc" }}
  grpc: {port: {{ .Values.ports.grpc }}}
  {{- else }}
  httpGet: {path: /readyz, port: metrics}
  {{- end }}
  periodSeconds: 3
  timeoutSeconds: 3
  failureThreshold: 2
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ .Values.drain.preStopSeconds | quote }}]
securityContext:
  {{- include "octavo.containerSecurity" . | nindent 2 }}
resources:
  {{- toYaml .Values.scheduler.resources | nindent 2 }}
volumeMounts:
  {{- include "octavo.mounts" . | nindent 2 }}
  {{- include "octavo.securityMounts" . | nindent 2 }}
  {{- with .Values.scheduler.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
