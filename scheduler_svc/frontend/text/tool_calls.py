"""Calls of functions as Qwen and Hermes models write them: JSON between two marks.

`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, white space allowed around the JSON. Knows
nothing of what is around a call.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # part of the module, not typed

from scheduler_svc.frontend.text.template_variables import NoJsonObject, json_object

CALL_MARK = "<tool_call>"
CALL_END_MARK = "</tool_call>"
CALL_MARKS = (CALL_MARK, CALL_END_MARK)
_SPACE = " \t\n\r"
_NAME, _ARGUMENTS = "name", "arguments"
# What matters to finding a call's end: a close mark inside a string is a part of it, and no string
# of JSON goes over a line's end.
_OUTSIDE = re.compile(rf'"|{re.escape(CALL_END_MARK)}|{re.escape(CALL_MARK)}')
_INSIDE = re.compile(r'"|\\[^\n]|\n')
# How many last characters may be the beginning of one of these.
_OVERLAP_OUTSIDE, _OVERLAP_INSIDE = len(CALL_END_MARK) - 1, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedCall:
    """A whole call; `arguments_json` is the text of a JSON object, as the model wrote it."""

    name: str
    arguments_json: str
    index: int = 0

    def numbered(self, index: int) -> ParsedCall:
        """The call as the output's call of this index."""
        return dataclasses.replace(self, index=index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What is known of a text that begins with the open mark.

    `length` None: not known yet. Else so many characters are a call, or, without one, only text.
    """

    length: int | None
    call: ParsedCall | None = None
    body: str = ""

    def call_at_end(self) -> ParsedCall | None:
        """The call if the text ends here: the close mark may be missing, nothing else."""
        return self.call if self.length is not None else parse_call(self.body)


class CallReader:
    """Reads one call as it grows; each character once."""

    def __init__(self) -> None:
        self._at = len(CALL_MARK)
        self._is_in_string = False
        self._has_begun = False

    def read(self, text: str) -> Verdict:
        """The verdict on the text so far, which begins with the open mark and only grows."""
        if not self._has_begun:
            body = text[len(CALL_MARK) :].lstrip(_SPACE)
            if body and not body.startswith("{"):
                return Verdict(length=len(CALL_MARK))
            self._has_begun = bool(body)
        while found := (_INSIDE if self._is_in_string else _OUTSIDE).search(text, self._at):
            self._at = found.end()
            if found[0] == '"':
                self._is_in_string = not self._is_in_string
            elif found[0] == "\n":
                self._is_in_string = False
            elif found[0] == CALL_MARK:
                return Verdict(length=found.start())
            elif found[0] == CALL_END_MARK:
                call = parse_call(text[len(CALL_MARK) : found.start()])
                return Verdict(length=found.end(), call=call)
        overlap = _OVERLAP_INSIDE if self._is_in_string else _OVERLAP_OUTSIDE
        self._at = max(self._at, len(text) - overlap)
        return Verdict(length=None, body=text[len(CALL_MARK) :])


def parse_call(body: str) -> ParsedCall | None:
    """The call between the marks; None when it is not one in every detail."""
    body = body.strip(_SPACE)
    try:
        members = json_object(body)
    except NoJsonObject:
        return None
    name, arguments = members.get(_NAME), members.get(_ARGUMENTS)
    if members.keys() != {_NAME, _ARGUMENTS} or not name or not isinstance(name, str):
        return None
    if not isinstance(arguments, dict):
        return None
    return ParsedCall(name=name, arguments_json=_member_text(body, _ARGUMENTS))


def _member_text(text: str, wanted: str) -> str:
    """The text of a member's value in a valid object; the last of that name, which counts."""
    decoder = json.JSONDecoder()
    found, at = "", _skip_space(text, 1)
    while text[at] == '"':
        key, at = scanstring(text, at + 1)
        begin = _skip_space(text, _skip_space(text, at) + 1)
        _, at = decoder.raw_decode(text, begin)
        if key == wanted:
            found = text[begin:at]
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def _skip_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
