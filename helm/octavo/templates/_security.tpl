{{/* Secrets of the inference port: mounted as folders, so that renewed ones arrive while it serves. */}}

{{- define "octavo.securityMounts" -}}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/octavo/tls, readOnly: true}
{{- end }}
{{- if .Values.tls.clientCaSecretName }}
- {name: client-ca, mountPath: /etc/octavo/client-ca, readOnly: true}
{{- end }}
{{- if .Values.apiKeys.secretName }}
- {name: api-keys, mountPath: /etc/octavo/api-keys, readOnly: true}
{{- end }}
{{- end }}

{{- define "octavo.securityVolumes" -}}
{{- range $name, $secret := dict "tls" .Values.tls.secretName "client-ca" .Values.tls.clientCaSecretName "api-keys" .Values.apiKeys.secretName }}
{{- with $secret }}
- name: {{ $name }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/* What a client inside the cluster needs: flags of the octavo command, environment, mounts, volumes. */}}

{{- define "octavo.clientArgs" -}}
- --target={{ include "octavo.name" . }}:{{ .Values.ports.grpc }}
{{- if .Values.tls.secretName }}
- --tls
{{- end }}
{{- if .Values.client.caSecretName }}
- --tls-ca=/etc/octavo/ca/ca.crt
{{- end }}
{{- if .Values.client.certSecretName }}
- --tls-cert=/etc/octavo/cert/tls.crt
- --tls-key=/etc/octavo/cert/tls.key
{{- end }}
{{- end }}

{{- define "octavo.clientEnvironment" -}}
- {name: HOME, value: /tmp}
{{- with .Values.client.apiKeySecretName }}
- name: OCTAVO_API_KEY
  valueFrom:
    secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.client.apiKeySecretKey | quote }}}
{{- end }}
{{- end }}

{{- define "octavo.clientMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.client.caSecretName }}
- {name: ca, mountPath: /etc/octavo/ca, readOnly: true}
{{- end }}
{{- if .Values.client.certSecretName }}
- {name: cert, mountPath: /etc/octavo/cert, readOnly: true}
{{- end }}
{{- end }}

{{- define "octavo.clientVolumes" -}}
- name: tmp
  emptyDir: {}
{{- range $name, $secret := dict "ca" .Values.client.caSecretName "cert" .Values.client.certSecretName }}
{{- with $secret }}
- name: {{ $name }}
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}
