"""What a frontend counts about its calls. Knows nothing of where the readings go."""

from octavo.internal.v1 import control_pb2 as control
from octavo.internal.v1 import engine_pb2 as engine
from scheduler_svc.frontend.finish_reasons import METRIC_LABEL
from scheduler_svc.metrics.readings import Counter, Histogram, render_all


class Traffic:
    """Counters and histograms of one frontend process."""

    def __init__(self) -> None:
        self._first_token = Histogram("time_to_first_token_seconds")
        self._token_gap = Histogram("inter_token_latency_seconds")
        self._whole = Histogram("e2e_request_latency_seconds")
        self._finished = Counter("request_success")
        self._rejected = Counter("requests_rejected")

    def first_token(self, seconds: float) -> None:
        """From arrival to the first token sent; once a request."""
        self._first_token.observe(seconds)

    def tokens(self, seconds: float, *, count: int) -> None:
        """So many tokens of an output went out, so long after those before."""
        self._token_gap.observe(seconds / count)

    def output_finished(self, finish: engine.Finish) -> None:
        """An output ended in-band."""
        label = METRIC_LABEL.get(finish.reason)
        if label is not None:
            self._finished.add(1, label)

    def request_ended(self, seconds: float) -> None:
        """From arrival to the end of a request's stream."""
        self._whole.observe(seconds)

    def refused(self, reason: str) -> None:
        """A request was refused here; the core counts its own refusals."""
        self._rejected.add(1, reason)

    def render(self) -> list[control.Reading]:
        """All readings now."""
        metrics = (
            self._first_token,
            self._token_gap,
            self._whole,
            self._finished,
            self._rejected,
        )
        return render_all(metrics)
