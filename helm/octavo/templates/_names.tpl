{{/* Names, labels and images. Knows nothing of containers. */}}

{{- define "octavo.name" -}}
{{- $base := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $base) (contains $base .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Takes a dict: the root context; optionally a suffix of the name, labels and annotations of the object. */}}
{{- define "octavo.metadata" -}}
name: {{ include "octavo.name" .root }}{{ .suffix }}
labels:
  {{- include "octavo.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "octavo.serviceAccountName" -}}
{{- default (ternary (include "octavo.name" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* Takes a dict: image, and the root context. */}}
{{- define "octavo.image" -}}
{{- $version := ternary (printf ":%s" (default .root.Chart.AppVersion .image.tag)) (printf "@%s" .image.digest) (empty .image.digest) -}}
image: {{ printf "%s%s" .image.repository $version | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
{{- end }}
