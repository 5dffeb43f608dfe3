"""Conversations rendered by a few processes, off the event loop. Knows nothing of requests."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scheduler_svc.frontend.text.chat import ChatMessage, RenderedChat
from scheduler_svc.frontend.text.template_process import TemplateLimits, TemplateProcess
from scheduler_svc.frontend.text.template_source import find_template

# One that is slow leaves the other to the rest.
_NUM_PROCESSES = 2


class ChatRenderer:
    """A checkpoint's chat template. Made by `ChatRenderer.load`."""

    def __init__(self, processes: Sequence[TemplateProcess]) -> None:
        """Processes are started when they are needed, the last one first."""
        self._threads = ThreadPoolExecutor(len(processes), thread_name_prefix="chat")
        self._idle: queue.LifoQueue[TemplateProcess] = queue.LifoQueue()
        for process in processes:
            self._idle.put(process)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        special_tokens: Mapping[str, str],
        limits: TemplateLimits | None = None,
    ) -> ChatRenderer | None:
        """The checkpoint's template, compiled; None when it has none.

        Raises `TokenizerFileInvalid` when the file or the template breaks a rule.
        """
        source = find_template(model_dir)
        if source is None:
            return None
        processes = [
            TemplateProcess(
                source, special_tokens=special_tokens, limits=limits or TemplateLimits()
            )
            for _ in range(_NUM_PROCESSES)
        ]
        processes[-1].start()
        return cls(processes)

    async def render(self, messages: Sequence[ChatMessage], **options: Any) -> RenderedChat:
        """As `ChatTemplate.render`, within the limits; options must be JSON. Raises ChatInvalid."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._render, messages, options)

    def close(self) -> None:
        """Ends the processes; a conversation that is being rendered is waited for."""
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()

    def _render(self, messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> RenderedChat:
        process = self._idle.get()
        try:
            return process.render(messages, options)
        finally:
            self._idle.put(process)
