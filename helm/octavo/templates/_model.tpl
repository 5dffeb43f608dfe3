{{/* Where the model is, and the init container that brings one that no volume holds. */}}

{{- define "octavo.hasModelVolume" -}}
{{- if or .Values.model.hostPath .Values.model.existingClaim .Values.model.image.reference }}true{{ end -}}
{{- end }}

{{- define "octavo.modelFolder" -}}
{{- if include "octavo.hasModelVolume" . }}/models/{{ .Values.model.name }}{{ else }}/var/cache/octavo/model{{ end -}}
{{- end }}

{{- define "octavo.servedName" -}}
{{- default (ternary "" .Values.model.name (eq (include "octavo.hasModelVolume" .) "true")) .Values.model.servedName -}}
{{- end }}

{{/* Embedded names are made, repository ids are downloaded; the link gives both containers one folder. */}}
{{- define "octavo.bringModel" -}}
import sys
from pathlib import Path

from octavo.models.pull import pull_model
from octavo.models.resolve import resolve_model

name, link = sys.argv[1], Path(sys.argv[2])
folder = pull_model(name) if "/" in name else resolve_model(name).path
link.unlink(missing_ok=True)
link.symlink_to(folder)
print(f"{name} is in {folder}")
{{- end }}

{{- define "octavo.modelContainer" -}}
name: model
{{ include "octavo.image" (dict "image" .Values.scheduler.image "root" .) }}
command:
  - python
  - -c
  - |
    {{- include "octavo.bringModel" . | nindent 4 }}
args: [{{ .Values.model.name | quote }}, {{ include "octavo.modelFolder" . }}]
env:
  {{- include "octavo.environment" . | nindent 2 }}
  {{- with .Values.model.tokenSecret }}
  {{- if .name }}
  - name: HF_TOKEN
    valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
  {{- end }}
  {{- end }}
  {{- with .Values.scheduler.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.scheduler.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "octavo.containerSecurity" . | nindent 2 }}
resources:
  {{- toYaml .Values.scheduler.resources | nindent 2 }}
volumeMounts:
  - {name: cache, mountPath: /var/cache/octavo}
  - {name: tmp, mountPath: /tmp}
{{- end }}
