"""The frontend's side of one process that renders chats. Knows nothing of requests.

Whatever the template does, `render` returns or raises within its limits; a process that had to die
for that is replaced at the next call.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_svc.frontend.text.chat import ChatMessage, RenderedChat
from scheduler_svc.frontend.text.errors import ChatInvalid, TokenizerFileInvalid
from scheduler_svc.frontend.text.template_frames import Frame, read_frame, write_frame
from scheduler_svc.frontend.text.template_source import TemplateSource

_COMMAND = (sys.executable, "-m", "scheduler_svc.frontend.text.template_child")
_END_LIMIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLimits:
    """Bounds of one rendering."""

    limit_s: float = 1.0
    """CPU time after which the template is interrupted; it is killed at twice that."""
    wall_limit_s: float = 10.0
    """Time after which the process is killed even if it got no CPU."""
    max_bytes: int = 512 * 2**20
    """Memory, beyond what the process has when it begins."""
    max_characters: int = 1 << 24
    """Length of the rendered conversation."""


class TemplateProcess:
    """One child. `start` first; one call at a time."""

    def __init__(
        self,
        source: TemplateSource,
        *,
        special_tokens: Mapping[str, str],
        limits: TemplateLimits,
    ) -> None:
        self._source = source
        self._special_tokens = special_tokens
        self._limits = limits
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the child and compiles the template. Raises TokenizerFileInvalid."""
        self._child = child = subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        weakref.finalize(self, _end, child)
        limits = self._limits
        answer = self._ask(
            {
                "template": self._source.text,
                "path": str(self._source.path),
                "special_tokens": dict(self._special_tokens),
                "limit_s": limits.limit_s,
                "max_bytes": limits.max_bytes,
                "max_characters": limits.max_characters,
            }
        )
        rule = "the chat template cannot be compiled within its limits"
        if answer is None or "rule" in answer:
            self.close()
            raise TokenizerFileInvalid(self._source.path, answer["rule"] if answer else rule)

    def render(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> RenderedChat:
        """As `ChatTemplate.render`, within the limits. Raises ChatInvalid."""
        if self._child is None:
            self.start()
        answer = self._ask(
            {
                "messages": [dataclasses.asdict(message) for message in messages],
                "options": dict(options),
            }
        )
        if answer is None:
            self.close()
            raise ChatInvalid(
                "messages",
                "the model's chat template takes more time or memory on them than it may have"
                f" ({self._limits.limit_s:g} s, {self._limits.max_bytes >> 20} MiB)",
            )
        if "rule" in answer:
            raise ChatInvalid(answer["field"], answer["rule"])
        return RenderedChat(text=answer["text"], unread_variables=tuple(answer["unread_variables"]))

    def close(self) -> None:
        """Ends the child."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _ask(self, frame: Frame) -> Frame | None:
        """The child's answer; None when it died of the question."""
        child = self._child
        assert child is not None, "start comes first"
        assert child.stdin is not None, "it has a pipe"
        assert child.stdout is not None, "it has a pipe"
        killer = threading.Timer(self._limits.wall_limit_s, child.kill)
        killer.start()
        try:
            write_frame(child.stdin, frame)
            return read_frame(child.stdout)
        except BrokenPipeError:
            return None
        finally:
            killer.cancel()


def _end(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    try:
        child.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
