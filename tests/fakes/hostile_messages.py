"""Random requests of every kind, made from the contract itself: new fields come by themselves.

Some are bytes of no message, some are messages with a few bytes wrong, some are whole messages with
random values in random fields, and some of these are valid. Knows no service.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.servicer import InferenceServicer

METHODS: Sequence[MethodDescriptor] = [
    method
    for method in api.DESCRIPTOR.services_by_name["InferenceService"].methods
    if method.name in vars(InferenceServicer)
]
"""All that are served."""
_MAX_DEPTH = 8
_NUMBERS = (0, 1, 2, 3, 5, 8, -1, 100, 258, 287, 288, 512, 1025, 2**31 - 1, -(2**31))
_FLOATS = (0.0, 0.5, 1.0, 2.0, 1e-30, -1.0, 100.0, 3.4e38, math.nan, math.inf, -math.inf)
_TEXTS = (
    *("", "a", " ", "hello there", "user", "r1", "r2", "r3", "\0", "\ufffd", "👩‍👩‍👧", "é" * 300),
    *("<think>", "</think>", "<tool_call>", '{"name": "f", "arguments": {}}', "{}", "[" * 3000),
    *('{"type": "object"}', '{"type": "string", "maxLength": 5}', "[a-c]{1,3}", "(a*)*b", "true"),
    *('start: "a" | "b"', 'root ::= "a" root | "b"', "x" * 5000, "{{ 1 }}", "../../etc/passwd"),
)
_VALUES: dict[int, Sequence[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: _TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
    FieldDescriptor.CPPTYPE_FLOAT: _FLOATS,
    FieldDescriptor.CPPTYPE_DOUBLE: _FLOATS,
    FieldDescriptor.CPPTYPE_INT32: _NUMBERS,
    FieldDescriptor.CPPTYPE_ENUM: _NUMBERS,
    FieldDescriptor.CPPTYPE_INT64: (*_NUMBERS, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 42, 2**63, 2**64 - 1),
}


class HostileMessages:
    """An endless supply; the same seed gives the same."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def method(self) -> MethodDescriptor:
        """What to call."""
        return self._draw.choice(METHODS)

    def request(self, method: MethodDescriptor) -> bytes:
        """A request for it, or what is none."""
        kind = self._draw.random()
        if kind < 0.1:
            return self._draw.randbytes(self._draw.randrange(300))
        message = self.message(method.input_type)
        if kind < 0.6:
            make_sound(message, self._draw)
        data = message.SerializeToString()
        return self._damaged(data) if kind > 0.85 else data

    def message(self, descriptor: Descriptor, *, depth: int = 0) -> Message:
        """A message with random values in random fields."""
        message = message_factory.GetMessageClass(descriptor)()
        chance = self._draw.choice((0.05, 0.2, 0.6))
        for field in descriptor.fields:
            is_message = field.message_type is not None
            if is_message and depth >= _MAX_DEPTH:
                continue
            if self._draw.random() < (max(0.4, chance) if is_message else chance):
                self._fill(message, field, depth)
        return message

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(self._count(is_message=value.message_type is not None)):
                entries = getattr(message, field.name)
                if value.message_type is not None:
                    made = self.message(value.message_type, depth=depth + 1)
                    entries[self._scalar(key)].CopyFrom(made)
                else:
                    entries[self._scalar(key)] = self._scalar(value)
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(self._count(is_message=field.message_type is not None)):
                if field.message_type is not None:
                    values.append(self.message(field.message_type, depth=depth + 1))
                else:
                    values.append(self._scalar(field))
        elif field.message_type is not None:
            made = self.message(field.message_type, depth=depth + 1)
            getattr(message, field.name).CopyFrom(made)
        else:
            setattr(message, field.name, self._scalar(field))

    def _count(self, *, is_message: bool) -> int:
        if self._draw.random() < 0.01:
            return self._draw.choice((40, 1025) if is_message else (300, 1025, 3000))
        return self._draw.randrange(4)

    def _scalar(self, field: FieldDescriptor) -> Any:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._draw.randbytes(self._draw.randrange(50))
        return self._draw.choice(_VALUES[field.cpp_type])

    def _damaged(self, data: bytes) -> bytes:
        """The bytes with some changed, lost or doubled."""
        draw, damaged = self._draw, bytearray(data)
        for _ in range(draw.randrange(1, 5)):
            if not damaged:
                break
            place = draw.randrange(len(damaged))
            match draw.randrange(3):
                case 0:
                    damaged[place] = draw.randrange(256)
                case 1:
                    del damaged[place : place + draw.randrange(1, 8)]
                case _:
                    damaged[place:place] = damaged[place : place + draw.randrange(1, 40)]
        return bytes(damaged)


def make_sound(message: Message, draw: random.Random) -> None:
    """Gives every generation and prompt in a message what it needs to be valid, if all else is."""
    for one in _inner(message):
        make_sound(one, draw)
    if isinstance(message, api.Generation):
        message.model = ""
        message.request_id = draw.choice(("", "", "r1", "r2", "r3"))
        message.stopping.max_tokens = draw.choice((1, 5, 20))
        message.stopping.ClearField("min_tokens")
        if draw.random() < 0.7:
            message.ClearField(draw.choice(("sampling", "output", "scheduling")))
            message.ClearField("structured_output")
    if isinstance(message, api.Prompt):
        message.ClearField("truncation")
        if draw.random() < 0.6:
            message.text = draw.choice(("hello", "x" * 100, "<think>"))
        elif draw.random() < 0.5:
            message.token_ids.ids[:] = [draw.randrange(258) for _ in range(10)]


def _inner(message: Message) -> Iterator[Message]:
    """Our own messages in it, those that it must have among them."""
    for field in message.DESCRIPTOR.fields:
        kind = field.message_type
        if kind is None or kind.file.package != "octavo.v1" or kind.GetOptions().map_entry:
            continue
        if field.is_repeated:
            yield from getattr(message, field.name)
        elif message.HasField(field.name) or field.name in ("generation", "prompt"):
            yield getattr(message, field.name)
