{{/* What `helm test` runs: a client of the service, as any other. */}}
{{- define "octavo.streamTest" -}}
import argparse
import sys

import octavo
from octavo.cli.service_flags import add_service_flags, api_key_from, credentials_from

parser = argparse.ArgumentParser()
add_service_flags(parser, variable="OCTAVO_TARGET", default="")
flags = parser.parse_args()
with octavo.Client(
    flags.target, timeout=240.0, credentials=credentials_from(flags), api_key=api_key_from(flags)
) as client:
    params = octavo.SamplingParams(max_tokens=32, ignore_eos=True)
    texts = [delta.text for delta in client.stream("Once upon a time", params=params)]
print("".join(texts))
if len(texts) < 2:
    sys.exit(f"the answer came in {len(texts)} piece(s), which is no stream")
{{- end }}

{{/* A pod that is a client of the service; everything but its containers. */}}
{{- define "octavo.clientPod" -}}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "octavo.podSecurity" . | nindent 2 }}
{{- range $field := list "imagePullSecrets" "tolerations" "nodeSelector" }}
{{- with index $.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
volumes:
  {{- include "octavo.clientVolumes" . | nindent 2 }}
{{- end }}
