"""One output as its frontend mirrors it: its tokens, and its end once there is one.

Knows nothing of requests, text or sockets.
"""

from __future__ import annotations

from array import array

from octavo.internal.v1 import engine_pb2 as engine

NO_TOKEN = -1


class TokensMissing(Exception):
    """Tokens came that do not follow the known ones."""


class TokensDiffer(Exception):
    """The core holds other tokens than were received before."""


class OutputRecord:
    """One output: its tokens, and its end once there is one."""

    __slots__ = ("end", "finish", "is_final", "records", "tokens")

    def __init__(self) -> None:
        self.tokens: array[int] = array("i")
        self.records = bytearray()
        """What is told of each token, where the request wants it: as many bytes for each."""
        self.end: engine.OutputEnd | None = None
        """The core's word."""
        self.finish: engine.Finish | None = None
        """Ours, which counts."""
        self.is_final = False
        """Submitted as ended: nothing more is said about it either way."""

    def take_one(self, first_index: int, token_id: int, record: bytes = b"") -> None:
        """Takes one token; a known one again does no harm."""
        num_known = len(self.tokens)
        if first_index == num_known:
            self.tokens.append(token_id)
            self.records += record
        elif first_index > num_known:
            raise TokensMissing(f"token {num_known} is missing, {first_index} came")

    def take(self, first_index: int, token_ids: list[int], records: bytes = b"") -> None:
        """Takes some tokens; known ones again do no harm."""
        num_known = len(self.tokens)
        if first_index > num_known:
            raise TokensMissing(f"token {num_known} is missing, {first_index} came")
        num_again = num_known - first_index
        self.tokens.extend(token_ids[num_again:])
        if records:
            self.records += records[num_again * (len(records) // len(token_ids)) :]

    def merge(self, known: engine.AttachedOutput) -> None:
        """Takes over what the core holds; whichever has more tokens goes on from there."""
        theirs = array("i", known.tokens)
        shared = min(len(theirs), len(self.tokens))
        if theirs[:shared] != self.tokens[:shared]:
            raise TokensDiffer("the core holds other tokens than were sent")
        self.tokens.extend(theirs[shared:])
        if known.records:
            self.records += known.records[shared * (len(known.records) // len(theirs)) :]
        if known.HasField("end"):
            self.note_end(known.end)

    def note_end(self, end: engine.OutputEnd) -> None:
        """Takes the core's end; the first word counts."""
        if self.end is None:
            self.end = engine.OutputEnd()
            self.end.CopyFrom(end)  # a part would keep the whole message in memory

    def as_resumed(self) -> engine.ResumedSequence:
        """What a core that knows nothing has to know; an ended output becomes final."""
        if self.end is None and self.finish is None:
            return engine.ResumedSequence(
                tokens=self.tokens.tobytes(), stop_token_id=NO_TOKEN, records=bytes(self.records)
            )
        self.is_final = True
        ended = self.finish or self.end
        assert ended is not None
        stop_token_id, message = NO_TOKEN, ""
        if self.end is not None:
            stop_token_id, message = self.end.stop_token_id, self.end.message
        if ended.reason == engine.END_REASON_STOP_STRING and self.finish is not None:
            stop_token_id, message = NO_TOKEN, self.finish.stop_string
        return engine.ResumedSequence(
            tokens=self.tokens[: ended.num_tokens].tobytes(),
            is_finished=True,
            reason=ended.reason,
            stop_token_id=stop_token_id,
            message=message,
            records=self._records_of(ended.num_tokens),
        )

    def _records_of(self, num_tokens: int) -> bytes:
        num_known = len(self.tokens)
        return bytes(self.records[: num_tokens * (len(self.records) // max(num_known, 1))])
