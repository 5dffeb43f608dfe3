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
{{- end }}

{{/* Takes a dict: image, and the root context. */}}
{{- define "octavo.image" -}}
image: {{ printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) | quote }}
imagePullPolicy: {{ .image.pullPolicy }}
{{- end }}
