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
{{- if gt (len (compact (list .Values.model.hostPath .Values.model.existingClaim .Values.model.image.reference))) 1 -}}
{{- fail "model.hostPath, model.existingClaim and model.image.reference exclude each other: set one" -}}
{{- end -}}
{{- if and .Values.model.image.reference (semverCompare "<1.31-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "model.image.reference needs Kubernetes 1.31, this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and .Values.model.tokenSecret.name (include "octavo.hasModelVolume" .) -}}
{{- fail "model.tokenSecret.name is for the init container, which a model volume leaves out: unset one" -}}
{{- end -}}
{{- $owned := list "model" "run-dir" "device" "tensor-parallel-size" "served-model-name" "replica" "workers" "frontends" "host" "port" "metrics-host" "metrics-port" "admin-port" "drain-limit" "tls-cert" "tls-key" "tls-client-ca" "api-keys-file" "tracing" -}}
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
{{- range $field := list "podLabels" "commonLabels" -}}
{{- range $label, $_ := index $.Values $field -}}
{{- if hasPrefix "app.kubernetes.io/" $label -}}
{{- fail (printf "%s: %s is set by the chart" $field $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "limits" "requests" -}}
{{- if hasKey (default dict (index $.Values.worker.resources $kind)) $.Values.worker.gpuResource -}}
{{- fail (printf "worker.resources.%s: %s is set by the chart from worker.tensorParallelSize" $kind $.Values.worker.gpuResource) -}}
{{- end -}}
{{- end -}}
{{- if .Values.volumes.cacheClaim -}}
{{- if or .Values.autoscaling.kind (gt (int .Values.replicas) 1) (eq .Values.strategy "RollingUpdate") -}}
{{- fail "volumes.cacheClaim: two pods must not write it at once; it needs replicas 1, strategy Recreate and no autoscaling.kind" -}}
{{- end -}}
{{- end -}}
{{- if .Values.autoscaling.kind -}}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) -}}
{{- fail (printf "autoscaling.maxReplicas is %d, less than autoscaling.minReplicas, %d" (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.kind "keda") (not .Values.autoscaling.keda.serverAddress) -}}
{{- fail "autoscaling.keda.serverAddress is missing: the address of Prometheus" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tls.secretName (eq .Values.probes.readiness "grpc") -}}
{{- fail "probes.readiness grpc: the kubelet's probe speaks no TLS, which tls.secretName turns on: use http" -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecretName (not .Values.tls.secretName) -}}
{{- fail "tls.clientCaSecretName needs tls.secretName: only a port with TLS asks for certificates" -}}
{{- end -}}
{{- if .Values.bench.enabled -}}
{{- if and .Values.apiKeys.secretName (not .Values.client.apiKeySecretName) -}}
{{- fail "client.apiKeySecretName is missing: the bench job must show a key, which apiKeys.secretName asks for" -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecretName (not .Values.client.certSecretName) -}}
{{- fail "client.certSecretName is missing: the bench job must show a certificate, which tls.clientCaSecretName asks for" -}}
{{- end -}}
{{- range $flag := .Values.bench.args -}}
{{- if has (regexFind "[a-z][a-z-]*" $flag) (list "target" "tls" "tls-ca" "tls-cert" "tls-key" "api-key-file" "wait") -}}
{{- fail (printf "bench.args: %s is set by the chart from another value" $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.tracing.enabled (not .Values.tracing.endpoint) -}}
{{- fail "tracing.endpoint is missing: the OTLP endpoint of a collector" -}}
{{- end -}}
{{- if and .Values.route.enabled (not .Values.route.parentRefs) -}}
{{- fail "route.parentRefs is missing: name at least one gateway" -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) -}}
{{- fail "inferencePool.endpointPicker.name is missing: the service of the endpoint picker" -}}
{{- end -}}
{{- $names := dict -}}
{{- range $name := list "grpc" "metrics" "admin" -}}
{{- $port := index $.Values.ports $name | int | toString -}}
{{- with index $names $port -}}
{{- fail (printf "ports.%s and ports.%s are both %s: they must differ" . $name $port) -}}
{{- end -}}
{{- $_ := set $names $port $name -}}
{{- end -}}
{{- end }}
