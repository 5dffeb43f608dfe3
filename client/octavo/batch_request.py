"""Many generations of one call: what is asked, what is answered, what is left. Sends nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.decoding import decode_generation
from octavo.errors import InternalError, ServiceError, Violation
from octavo.failures import error_class
from octavo.results import Generation
from octavo.v1 import inference_pb2

# Most that one call takes; more go into further calls.
MAX_ENTRIES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """The answer to one prompt of a batch: its generation, or the error that it ended with.

    `index` is the prompt's place in the batch.
    """

    index: int
    generation: Generation | None
    error: ServiceError | None

    def result(self) -> Generation:
        """The generation; raises the error if there is none."""
        if self.error is not None:
            raise self.error
        assert self.generation is not None, "it is one or the other"
        return self.generation


class BatchRequest:
    """The entries that have no answer yet."""

    def __init__(self, generations: Sequence[inference_pb2.Generation]) -> None:
        self._waiting = dict(enumerate(generations))
        self._asked: list[int] = []

    @property
    def is_answered(self) -> bool:
        """Whether nothing is left."""
        return not self._waiting

    def message(self) -> inference_pb2.GenerateBatchRequest:
        """Asks for what is left, as much of it as a call takes."""
        self._asked = list(self._waiting)[:MAX_ENTRIES]
        return inference_pb2.GenerateBatchRequest(
            generations=[self._waiting[index] for index in self._asked]
        )

    def absorb(self, response: inference_pb2.GenerateBatchResponse) -> BatchAnswer:
        """One answer to the latest message; raises InternalError for one that was not asked for."""
        index = self._asked[response.index] if response.index < len(self._asked) else -1
        if self._waiting.pop(index, None) is None:
            raise InternalError(
                f"entry {response.index} of the batch was answered twice", code="INTERNAL"
            )
        if response.HasField("error"):
            return BatchAnswer(index=index, generation=None, error=_error(response.error))
        return BatchAnswer(index=index, generation=decode_generation(response.answer), error=None)

    def check_call_ended(self) -> None:
        """Raises InternalError unless the latest message was answered whole."""
        missing = [index for index in self._asked if index in self._waiting]
        if missing:
            raise InternalError(
                f"the stream ended without an answer to entry {missing[0]}", code="INTERNAL"
            )


def _error(error: inference_pb2.GenerationError) -> ServiceError:
    kind, code = error_class(error.code)
    return kind(
        error.message,
        code=code,
        reason=error.reason,
        request_id=error.request_id,
        violations=[Violation(fault.field, fault.rule) for fault in error.faults],
    )
