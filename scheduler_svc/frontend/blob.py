"""What the core keeps of the text world, so that any frontend can rebuild a request's stream.

The blob is opaque to the core: a version byte, a byte that says whether the output begins inside
the model's reasoning, then one StreamStart with what is known before the generation begins,
delimited, then a Generation with what its text depends on, both in their deterministic
serialization.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.request import TextRules

_VERSION = b"\x02"
_LENGTH_BYTES = 4


class BlobInvalid(Exception):
    """The blob was not made by this version of the frontend."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamFacts:
    """What a blob holds."""

    generation: api.Generation
    start: api.StreamStart
    """What of it was known before the generation began; echoed ids are those of the prompt."""
    starts_in_reasoning: bool


def write_blob(
    generation: api.Generation, *, start: api.StreamStart, starts_in_reasoning: bool
) -> bytes:
    """The blob of a request."""
    kept = api.Generation(stopping=generation.stopping, output=generation.output)
    facts = start.SerializeToString(deterministic=True)
    size = len(facts).to_bytes(_LENGTH_BYTES, "little")
    flags = bytes((starts_in_reasoning,))
    return _VERSION + flags + size + facts + kept.SerializeToString(deterministic=True)


def read_blob(blob: bytes) -> StreamFacts:
    """The facts in a blob; raises BlobInvalid."""
    header = len(_VERSION) + 1 + _LENGTH_BYTES
    if len(blob) < header or not blob.startswith(_VERSION):
        raise BlobInvalid("the request was made by another version of the frontend")
    end = header + int.from_bytes(blob[len(_VERSION) + 1 : header], "little")
    try:
        start = api.StreamStart.FromString(blob[header:end])
        generation = api.Generation.FromString(blob[end:])
    except DecodeError as error:
        raise BlobInvalid("the request's stored facts cannot be read") from error
    return StreamFacts(
        generation=generation, start=start, starts_in_reasoning=bool(blob[len(_VERSION)])
    )


def text_rules(
    generation: api.Generation, *, end_token_ids: frozenset[int], starts_in_reasoning: bool
) -> TextRules:
    """The rules of a valid generation's text."""
    stopping, output = generation.stopping, generation.output
    skips = output.skip_special_tokens if output.HasField("skip_special_tokens") else True
    interval = output.stream_interval if output.HasField("stream_interval") else 1
    return TextRules(
        stop_strings=tuple(stopping.stop),
        include_stop=stopping.include_stop,
        skip_special_tokens=skips,
        min_tokens=stopping.min_tokens,
        end_token_ids=end_token_ids,
        stream_interval=interval,
        split_reasoning=output.split_reasoning,
        parse_tool_calls=output.parse_tool_calls,
        starts_in_reasoning=starts_in_reasoning,
    )
