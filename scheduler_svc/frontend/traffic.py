"""What a frontend counts about its calls. Knows nothing of where the readings go.

Every label value comes from code of ours: method names, status codes, reasons.
"""

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.finish_reasons import METRIC_LABEL
from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.tenant_labels import TenantLabels
from scheduler_svc.metrics.readings import Counter, Histogram, render_all

_ANY_METHOD = "any"


class Traffic:
    """Counters and histograms of one frontend process."""

    def __init__(self, labels: TenantLabels | None = None) -> None:
        self._labels = labels or TenantLabels(None)
        self._started = Counter("grpc_server_started")
        self._handled = Counter("grpc_server_handled")
        self._first_token = Histogram("time_to_first_token_seconds")
        self._prefill = Histogram("request_prefill_time_seconds")
        self._token_gap = Histogram("inter_token_latency_seconds")
        self._decode = Histogram("request_decode_time_seconds")
        self._whole = Histogram("e2e_request_latency_seconds")
        self._finished = Counter("request_success")
        self._aborted = Counter("requests_aborted")
        self._rejected = Counter("requests_rejected")
        self._stalls = Counter("stream_stalls")
        self._tenant_requests = Counter("tenant_requests")
        self._tenant_prompts = Counter("tenant_prompt_tokens")
        self._tenant_tokens = Counter("tenant_generation_tokens")
        self._recovery = Histogram("recovery_seconds")

    def call_started(self, method: str) -> None:
        """A call arrived."""
        self._started.add(1, method)

    def call_ended(self, method: str, code: str) -> None:
        """Its handler returned, with this status."""
        self._handled.add(1, method, code)

    def first_token(self, seconds: float) -> None:
        """From arrival to the first token sent; once a request."""
        self._first_token.observe(seconds)

    def prefilled(self, seconds: float) -> None:
        """From a request's first step to its first token sent; once a request."""
        self._prefill.observe(seconds)

    def tokens(self, seconds: float, *, count: int) -> None:
        """So many tokens of an output went out, so long after those before."""
        self._token_gap.observe(seconds / count)

    def decoded(self, seconds: float) -> None:
        """From a request's first token sent to its last one; once a request."""
        self._decode.observe(seconds)

    def output_finished(self, finish: engine.Finish) -> None:
        """An output ended in-band."""
        label = METRIC_LABEL.get(finish.reason)
        if label is not None:
            self._finished.add(1, label)

    def request_ended(self, seconds: float) -> None:
        """From arrival to the end of a request's stream, whichever end that was."""
        self._whole.observe(seconds)

    def aborted(self, cause: str) -> None:
        """The stream of an accepted request ended before the request's end was told."""
        self._aborted.add(1, cause)

    def stalled(self, side: str) -> None:
        """A stream stood still: `service` made nothing, or `client` read nothing."""
        self._stalls.add(1, side)

    def recovered(self, part: str, seconds: float) -> None:
        """Streams that waited for a core go on; one part of how long that took."""
        self._recovery.observe(seconds, part)

    def served(self, stream: GenerationStream, *, is_continuation: bool) -> None:
        """A stream ended, well or not; one that goes on with a request counts only its tokens."""
        tenant = self._labels.of(stream.record.submit.tenant)
        self._tenant_requests.add(not is_continuation, tenant)
        num_prompt = 0 if is_continuation else stream.usage().prompt_tokens
        self._tenant_prompts.add(num_prompt, tenant)
        self._tenant_tokens.add(stream.num_streamed, tenant)

    def asked(self, tenant: str, *, num_prompt_tokens: int) -> None:
        """The core took a question of Embed or Score: a request without tokens for its client."""
        label = self._labels.of(tenant)
        self._tenant_requests.add(1, label)
        self._tenant_prompts.add(num_prompt_tokens, label)

    def refused(self, reason: str) -> None:
        """A request was refused here; the core counts its own refusals."""
        self._rejected.add(1, reason)

    def denied(self) -> None:
        """A call was turned away for its key, before anybody looked at its method."""
        self._started.add(1, _ANY_METHOD)
        self._handled.add(1, _ANY_METHOD, "UNAUTHENTICATED")
        self.refused("unauthenticated")

    def render(self) -> list[control.Reading]:
        """All readings now."""
        metrics = (
            *(self._started, self._handled),
            *(self._first_token, self._prefill, self._token_gap, self._decode, self._whole),
            *(self._finished, self._aborted, self._rejected, self._stalls),
            *(self._recovery, self._tenant_requests, self._tenant_prompts, self._tenant_tokens),
        )
        return render_all(metrics)
