"""Cuts a result's records into those of each row, and of each prompt. Knows sizes, no contents."""

from scheduler_svc.core.batch import Batch, Slots
from scheduler_svc.core.epoch import PromptStretch, StepInFlight
from scheduler_svc.core.news import NewsBox
from scheduler_svc.core.plan import BadResult, StepResult
from scheduler_svc.core.records import WORD_BYTES, PromptRecords


def cut_row_records(batch: Batch, slots: Slots, result: StepResult) -> list[bytes] | None:
    """The record of each row that got a token, empty where none is wanted; None: no row has one.

    Raises BadResult when the result's bytes are not as many as the rows want.
    """
    if not (batch.num_with_records or result.token_records or result.pooled):
        return None
    words = batch.record_words[slots]
    is_pooled = batch.is_pooled[slots]
    num_pooled = int(is_pooled.sum())
    expected = WORD_BYTES * int(words.sum())
    if len(result.token_records) != expected:
        raise BadResult(
            f"step {result.step}: {len(result.token_records)} bytes of token records for {expected}"
        )
    is_whole = len(result.pooled) % max(WORD_BYTES * num_pooled, 1) == 0
    if not is_whole or bool(num_pooled) != bool(result.pooled):
        raise BadResult(
            f"step {result.step}: {len(result.pooled)} bytes are no vectors of {num_pooled} rows"
        )
    if not expected and not num_pooled:
        return None
    vector_bytes = len(result.pooled) // num_pooled if num_pooled else 0
    records, at, pooled_at = [], 0, 0
    for num_words, pools in zip(words.tolist(), is_pooled.tolist(), strict=True):
        if pools:
            records.append(result.pooled[pooled_at : pooled_at + vector_bytes])
            pooled_at += vector_bytes
            continue
        end = at + WORD_BYTES * num_words
        records.append(result.token_records[at:end])
        at = end
    return records


def check_prompt_records(step: StepInFlight, result: StepResult) -> None:
    """Raises BadResult unless there are as many bytes as the step's chunks bring."""
    expected = sum(_num_bytes(stretch) for stretch in step.prompt_stretches)
    if len(result.prompt_records) != expected:
        raise BadResult(
            f"step {step.step}: {len(result.prompt_records)} bytes of prompt records for {expected}"
        )


def take_prompt_records(batch: Batch, step: StepInFlight, records: bytes, news: NewsBox) -> None:
    """Gives each request what is new of its prompt's records, and tells its owner."""
    at = 0
    for stretch in step.prompt_stretches:
        end = at + _num_bytes(stretch)
        part, at = records[at:end], end
        request = stretch.sequence.request
        # who has left the slot computes them anew
        is_here = batch.sequences[stretch.slot] is stretch.sequence
        if not is_here or stretch.first_position != request.next_prompt_record:
            continue
        request.prompt_records += part
        news.prompt_records.append(
            PromptRecords(
                owner=request.owner,
                number=request.number,
                first_position=stretch.first_position,
                records=part,
            )
        )


def _num_bytes(stretch: PromptStretch) -> int:
    words = stretch.sequence.request.new.records.prompt_words
    return stretch.count * WORD_BYTES * words
