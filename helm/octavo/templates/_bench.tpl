{{/* The bench job's pods. */}}
{{- define "octavo.benchPod" -}}
metadata:
  labels:
    octavo.test/release: {{ .Release.Name | quote }}
spec:
  {{- include "octavo.clientPod" . | nindent 2 }}
  containers:
    - name: bench
      {{- include "octavo.image" (dict "image" .Values.scheduler.image "root" .) | nindent 6 }}
      command: [python, -m, octavo.cli.main, bench]
      args:
        {{- include "octavo.clientArgs" . | nindent 8 }}
        - --wait={{ .Values.bench.waitSeconds }}
        {{- with .Values.bench.args }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        {{- include "octavo.clientEnvironment" . | nindent 8 }}
      securityContext:
        {{- include "octavo.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .Values.bench.resources | nindent 8 }}
      volumeMounts:
        {{- include "octavo.clientMounts" . | nindent 8 }}
{{- end }}
