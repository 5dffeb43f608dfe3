"""Opens streams: of new requests, and of ones that are known already. Knows nothing of gRPC."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.blob import BlobInvalid, read_blob, text_rules
from scheduler_svc.frontend.errors import (
    GenerationFailed,
    InvalidRequest,
    ReaderAhead,
    Violation,
)
from scheduler_svc.frontend.generation_stream import GenerationStream
from scheduler_svc.frontend.ledger import RequestLedger
from scheduler_svc.frontend.model import ServedModel
from scheduler_svc.frontend.output_stream import OutputStream
from scheduler_svc.frontend.record import RequestRecord
from scheduler_svc.frontend.request import ParsedRequest, TextRules
from scheduler_svc.frontend.submission import new_record
from scheduler_svc.frontend.text.answer_parts import AnswerSplitter
from scheduler_svc.frontend.text.stops import StopMatcher
from scheduler_svc.frontend.text.text_stream import TextStream
from scheduler_svc.frontend.told_tokens import output_reader
from scheduler_svc.frontend.traffic import Traffic
from scheduler_svc.security.key_records import Caller


class Generations:
    """Builds a stream around a record and waits for the core's word on it."""

    def __init__(
        self,
        model: ServedModel,
        ledger: RequestLedger,
        *,
        replica: str,
        traffic: Traffic,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._replica = replica
        self._traffic = traffic
        self._clock = clock

    async def start(
        self, request: ParsedRequest, *, caller: Caller, deadline_at: float | None
    ) -> GenerationStream:
        """Submits the request; returns its stream once it is accepted, raises its refusal."""
        record = new_record(request, caller=caller, now=self._clock(), deadline_at=deadline_at)
        stream = self._stream(
            record,
            request.text_rules,
            start=read_blob(request.blob).start,
            num_delivered=[len(received.token_ids) for received in request.received],
            ended=[received.end is not None for received in request.received],
        )
        await stream.catch_up()
        self._ledger.submit(record)
        await self._answer(record)
        return stream

    async def attach(
        self,
        request_id: str,
        from_tokens: Sequence[int],
        *,
        tenant: str,
        deadline_at: float | None,
    ) -> GenerationStream:
        """Takes over a known request of the tenant; its stream goes on behind `from_tokens`."""
        record = RequestRecord(
            engine.Submit(tenant=tenant, request_id=request_id),
            now=self._clock(),
            deadline_at=deadline_at,
            is_attach=True,
        )
        self._ledger.attach(record)
        await self._answer(record)
        try:
            _check_from_tokens(record, from_tokens)
            facts = read_blob(record.submit.blob)
        except (InvalidRequest, ReaderAhead):
            self._ledger.detach(record, cancel=False)
            raise
        except BlobInvalid as error:
            self._ledger.detach(record, cancel=False)
            raise GenerationFailed(str(error)) from error
        ends = frozenset((*record.submit.eos_token_ids, *record.submit.stop_token_ids))
        return self._stream(
            record,
            text_rules(
                facts.generation,
                end_token_ids=ends,
                starts_in_reasoning=facts.starts_in_reasoning,
            ),
            start=facts.start,
            num_delivered=from_tokens,
        )

    async def _answer(self, record: RequestRecord) -> None:
        try:
            await record.answered
        except asyncio.CancelledError:
            self._ledger.detach(record, cancel=record.is_past_deadline(self._clock()))
            raise

    def _stream(
        self,
        record: RequestRecord,
        rules: TextRules,
        *,
        start: api.StreamStart,
        num_delivered: Sequence[int] = (),
        ended: Sequence[bool] = (),
    ) -> GenerationStream:
        prompt = array("i", record.submit.prompt_tokens)
        reader = output_reader(record.submit)
        outputs: list[OutputStream | None] = []
        for index, mirror in enumerate(record.outputs):
            if index < len(ended) and ended[index]:
                outputs.append(None)
                continue
            delivered = num_delivered[index] if index < len(num_delivered) else 0
            text = TextStream(
                self._model.tokenizer.detokenizer(
                    prompt, skip_special_tokens=rules.skip_special_tokens, shown=rules.marks
                ),
                StopMatcher(rules.stop_strings, include_stop=rules.include_stop),
                splitter=splitter_for(rules),
                min_tokens=rules.min_tokens,
                num_delivered_tokens=delivered,
            )
            outputs.append(
                OutputStream(
                    index,
                    mirror,
                    text,
                    rules,
                    request_id=record.submit.request_id,
                    num_delivered=delivered,
                    reader=reader,
                )
            )
        return GenerationStream(
            record,
            outputs,
            model=self._model.name,
            replica=self._replica,
            start=start,
            on_finish=self._finish,
        )

    def _finish(self, record: RequestRecord, finish: engine.Finish) -> None:
        self._ledger.finish(record, finish)
        self._traffic.output_finished(finish)


def splitter_for(rules: TextRules) -> AnswerSplitter | None:
    """What takes an output's text apart; None where it stays as it is."""
    if not (rules.split_reasoning or rules.parse_tool_calls):
        return None
    return AnswerSplitter(
        split_reasoning=rules.split_reasoning,
        parse_tool_calls=rules.parse_tool_calls,
        starts_in_reasoning=rules.starts_in_reasoning,
    )


def _check_from_tokens(record: RequestRecord, from_tokens: Sequence[int]) -> None:
    if len(from_tokens) > len(record.outputs):
        rule = f"has {len(from_tokens)} entries, the request has {len(record.outputs)} outputs"
        raise InvalidRequest([Violation(field="from_tokens", rule=rule)])
    for index, num_received in enumerate(from_tokens):
        num_known = len(record.outputs[index].tokens)
        if num_received > num_known:
            raise ReaderAhead(output_index=index, num_received=num_received, num_known=num_known)
