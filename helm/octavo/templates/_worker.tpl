{{/* The worker's container: one supervisor and its ranks. */}}

{{/* Kubernetes stops both containers at once; streams that drain need their worker until the scheduler has ended. */}}
{{- define "octavo.waitForScheduler" -}}
import socket, time
while True:
    try:
        socket.create_connection(("127.0.0.1", {{ .Values.ports.metrics }}), timeout=1).close()
    except ConnectionRefusedError:
        break
    except OSError:
        pass
    time.sleep(0.5)
{{- end }}

{{/* The given resources, with one GPU per rank added for cuda. */}}
{{- define "octavo.workerResources" -}}
{{- $resources := deepCopy .Values.worker.resources -}}
{{- if eq .Values.worker.device "cuda" -}}
{{- $limits := set (default dict $resources.limits) .Values.worker.gpuResource (int .Values.worker.tensorParallelSize) -}}
{{- $resources = set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- define "octavo.worker" -}}
name: worker
{{ include "octavo.image" (dict "image" .Values.worker.image "root" .) }}
command: [python, -m, worker_svc]
args:
  {{- include "octavo.sharedArgs" . | nindent 2 }}
  {{- with .Values.worker.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- include "octavo.environment" . | nindent 2 }}
  {{- with .Values.worker.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.worker.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
lifecycle:
  preStop:
    exec:
      command:
        - python
        - -c
        - |
          {{- include "octavo.waitForScheduler" . | nindent 10 }}
securityContext:
  {{- include "octavo.containerSecurity" . | nindent 2 }}
resources:
  {{- include "octavo.workerResources" . | nindent 2 }}
volumeMounts:
  {{- include "octavo.mounts" . | nindent 2 }}
  - {name: shm, mountPath: /dev/shm}
  {{- with .Values.worker.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
