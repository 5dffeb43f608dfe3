"""`python -m scheduler_svc.frontend.text.template_child`: renders conversations, within limits.

A chat template is a program of the checkpoint's author. It runs here, alone in a process that may
be killed: bounded in CPU time by two timers (the first interrupts it, the second ends the process
where it cannot be interrupted) and in memory by the system. Reads and writes frames of JSON, see
`template_process.py`; ends when its input does.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import IO

from scheduler_svc.confined import confine
from scheduler_svc.frontend.text.chat import ChatMessage, ChatTemplate
from scheduler_svc.frontend.text.errors import ChatInvalid, TokenizerFileInvalid
from scheduler_svc.frontend.text.template_frames import Frame, read_frame, write_frame
from scheduler_svc.frontend.text.template_source import TemplateSource

_UNINTERRUPTED_FACTOR = 2.0


class _TimeIsUp(BaseException):
    """The template ran too long; no template and no filter can catch it."""


def main() -> None:
    """Compiles the template in the first frame, then renders one conversation a frame."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGVTALRM, _interrupt)
    first = read_frame(requests)
    if first is None:
        return
    confine(first["max_bytes"])
    limit_s = first["limit_s"]
    template = _compile(first, answers, limit_s)
    while template is not None and (request := read_frame(requests)) is not None:
        write_frame(answers, _render(template, request, limit_s))


def _compile(first: Frame, answers: IO[bytes], limit_s: float) -> ChatTemplate | None:
    path = Path(first["path"])
    _start_timers(limit_s)
    try:
        template = ChatTemplate(
            TemplateSource(text=first["template"], path=path),
            special_tokens=first["special_tokens"],
            max_characters=first["max_characters"],
        )
        answer = {}
    except TokenizerFileInvalid as error:
        template, answer = None, {"rule": error.rule}
    except _TimeIsUp:
        template, answer = None, {"rule": f"the chat template must compile within {limit_s:g} s"}
    except MemoryError:
        template, answer = None, {"rule": "the chat template must compile in little memory"}
    _stop_timers()
    write_frame(answers, answer)
    return template


def _render(template: ChatTemplate, request: Frame, limit_s: float) -> Frame:
    messages = [ChatMessage(**message) for message in request["messages"]]
    try:
        _start_timers(limit_s)
        try:
            rendered = template.render(messages, **request["options"])
        finally:
            _stop_timers()
    except ChatInvalid as error:
        return {"field": error.field, "rule": error.rule}
    except _TimeIsUp:
        return {"field": "messages", "rule": time_rule(limit_s)}
    return {"text": rendered.text, "unread_variables": rendered.unread_variables}


def time_rule(limit_s: float) -> str:
    """What to say of a conversation that cannot be rendered in time."""
    return f"the model's chat template takes more than {limit_s:g} s on them"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise _TimeIsUp


def _start_timers(limit_s: float) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    # its signal is not handled: it ends the process
    signal.setitimer(signal.ITIMER_PROF, _UNINTERRUPTED_FACTOR * limit_s)


def _stop_timers() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    signal.setitimer(signal.ITIMER_PROF, 0.0)


if __name__ == "__main__":
    main()
