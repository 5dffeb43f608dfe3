{{/* Rules between values, which the schema cannot express. Each failure names the value and the rule. */}}

{{- define "octavo.drainSeconds" -}}
{{- add .Values.drain.preStopSeconds .Values.drain.limitSeconds .Values.drain.marginSeconds -}}
{{- end }}

{{- define "octavo.checks" -}}
{{- $drain := include "octavo.drainSeconds" . | int -}}
{{- with .Values.terminationGracePeriodSeconds -}}
{{- if lt (int .) $drain -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but a drain may take %d: drain.preStopSeconds + drain.limitSeconds + drain.marginSeconds" (int .) $drain) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.model.hostPath .Values.model.existingClaim -}}
{{- fail "model.hostPath and model.existingClaim exclude each other: set one" -}}
{{- end -}}
{{- $owned := list "model" "run-dir" "device" "tensor-parallel-size" "served-model-name" "replica" "workers" "frontends" "host" "port" "metrics-host" "metrics-port" "drain-limit" -}}
{{- range $container := list "scheduler" "worker" -}}
{{- range $flag := (index $.Values $container).extraArgs -}}
{{- if has (regexFind "[a-z][a-z-]*" $flag) $owned -}}
{{- fail (printf "%s.extraArgs: %s is set by the chart from another value" $container $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.ports.grpc) (int .Values.ports.metrics) -}}
{{- fail (printf "ports.grpc and ports.metrics are both %d: they must differ" (int .Values.ports.grpc)) -}}
{{- end -}}
{{- end }}
