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
{{- $shared := list "max-model-len" "block-size" "num-kv-blocks" "max-num-seqs" "max-num-batched-tokens" -}}
{{- $lists := dict "engineArgs" .Values.engineArgs "scheduler.extraArgs" .Values.scheduler.extraArgs "worker.extraArgs" .Values.worker.extraArgs -}}
{{- range $field, $flags := $lists -}}
{{- range $flag := $flags -}}
{{- $name := regexFind "[a-z][a-z-]*" $flag -}}
{{- if has $name $owned -}}
{{- fail (printf "%s: %s is set by the chart from another value" $field $flag) -}}
{{- end -}}
{{- if and (has $name $shared) (ne $field "engineArgs") -}}
{{- fail (printf "%s: %s must be the same in both containers: move it to engineArgs" $field $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.ports.grpc) (int .Values.ports.metrics) -}}
{{- fail (printf "ports.grpc and ports.metrics are both %d: they must differ" (int .Values.ports.grpc)) -}}
{{- end -}}
{{- end }}
