{{/* What the two containers share: flags, their security, mounts and environment. */}}

{{- define "octavo.sharedArgs" -}}
- --model={{ include "octavo.modelFolder" . }}
- --run-dir=/run/octavo/replica
- --device={{ .Values.worker.device }}
- --tensor-parallel-size={{ .Values.worker.tensorParallelSize }}
{{- with .Values.engineArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "octavo.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .Values.fsGroup }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "octavo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Everything that is written lies on volumes, whatever the user id. */}}
{{- define "octavo.environment" -}}
- {name: HOME, value: /var/cache/octavo}
- {name: OCTAVO_CACHE, value: /var/cache/octavo/models}
- {name: XDG_CACHE_HOME, value: /var/cache/octavo}
- {name: TMPDIR, value: /tmp}
{{- end }}

{{- define "octavo.mounts" -}}
- {name: run, mountPath: /run/octavo}
- {name: cache, mountPath: /var/cache/octavo}
- {name: tmp, mountPath: /tmp}
{{- if include "octavo.hasModelVolume" . }}
- {name: model, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "octavo.volumes" -}}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.volumes.shmSize }}}
- name: cache
  {{- if .Values.volumes.cacheClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.volumes.cacheClaim | quote }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ .Values.volumes.cacheSize }}}
  {{- end }}
- name: tmp
  emptyDir: {}
{{- with .Values.model.hostPath }}
- name: model
  hostPath: {path: {{ . | quote }}, type: Directory}
{{- end }}
{{- with .Values.model.existingClaim }}
- name: model
  persistentVolumeClaim: {claimName: {{ . | quote }}, readOnly: true}
{{- end }}
{{- with .Values.model.image }}
{{- if .reference }}
- name: model
  image: {reference: {{ .reference | quote }}, pullPolicy: {{ .pullPolicy }}}
{{- end }}
{{- end }}
{{- with include "octavo.securityVolumes" . }}
{{- . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Constraints that name no pods mean this release's. */}}
{{- define "octavo.topologySpread" -}}
{{- $selector := dict "matchLabels" (include "octavo.selector" . | fromYaml) -}}
{{- range .Values.topologySpreadConstraints }}
- {{ merge (deepCopy .) (dict "labelSelector" $selector) | toYaml | nindent 2 | trim }}
{{- end }}
{{- end }}
