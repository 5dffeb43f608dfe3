{{/* What `helm test` runs: a client of the service, as any other. */}}
{{- define "octavo.streamTest" -}}
import sys

import octavo

with octavo.Client(sys.argv[1], timeout=240.0) as client:
    params = octavo.SamplingParams(max_tokens=32, ignore_eos=True)
    texts = [delta.text for delta in client.stream("Once upon a time", params=params)]
print("".join(texts))
if len(texts) < 2:
    sys.exit(f"the answer came in {len(texts)} piece(s), which is no stream")
{{- end }}
