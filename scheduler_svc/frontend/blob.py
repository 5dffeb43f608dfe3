"""What the core keeps of the text world, so that any frontend can rebuild a request's stream.

The blob is opaque to the core: a version byte, then one StreamStart with the warnings, delimited,
then a Generation with what its text depends on, both in their deterministic serialization.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.request import TextRules

_VERSION = b"\x01"
_LENGTH_BYTES = 4


class BlobInvalid(Exception):
    """The blob was not made by this version of the frontend."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamFacts:
    """What a blob holds."""

    generation: api.Generation
    warnings: tuple[str, ...]


def write_blob(generation: api.Generation, *, warnings: tuple[str, ...]) -> bytes:
    """The blob of a request."""
    kept = api.Generation(stopping=generation.stopping, output=generation.output)
    facts = api.StreamStart(warnings=warnings).SerializeToString(deterministic=True)
    size = len(facts).to_bytes(_LENGTH_BYTES, "little")
    return _VERSION + size + facts + kept.SerializeToString(deterministic=True)


def read_blob(blob: bytes) -> StreamFacts:
    """The facts in a blob; raises BlobInvalid."""
    header = len(_VERSION) + _LENGTH_BYTES
    if len(blob) < header or not blob.startswith(_VERSION):
        raise BlobInvalid("the request was made by another version of the frontend")
    end = header + int.from_bytes(blob[len(_VERSION) : header], "little")
    try:
        start = api.StreamStart.FromString(blob[header:end])
        generation = api.Generation.FromString(blob[end:])
    except DecodeError as error:
        raise BlobInvalid("the request's stored facts cannot be read") from error
    return StreamFacts(generation=generation, warnings=tuple(start.warnings))


def text_rules(generation: api.Generation, *, end_token_ids: frozenset[int]) -> TextRules:
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
    )
