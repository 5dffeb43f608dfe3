"""`octavo.Engine`: a batch of prompts in, their results out, without a server to look after."""

from __future__ import annotations

import os
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from octavo.engine.batch import wait_for_all
from octavo.engine.loop import ClientLoop, Job
from octavo.engine.meter import Meter
from octavo.engine.open_requests import OpenRequests
from octavo.engine.settings import service_flags
from octavo.errors import ClientClosed, ServiceError
from octavo.models.resolve import DEFAULT_MODEL
from octavo.obtain import obtain_model
from octavo.progress_display import display_progress
from octavo.prompts import MessagesInput, PromptInput, is_conversation
from octavo.results import Delta, Generation
from octavo.sampling import SamplingParams
from octavo.service_packages import require_service_packages
from octavo.spawn import LocalService

# Enough for the service to fill its batch; the others wait here, so that its queue never is full.
_MAX_IN_FLIGHT = 512

Params = SamplingParams | Sequence[SamplingParams] | None


class Engine:
    """Runs a model on this machine for this process alone.

    model: a folder, the embedded smollm2-135m-instruct, or a cached Hugging Face repository id.
    start_limit_s: how long loading the model may take.
    show_progress: draws progress on stderr while the model is obtained and loaded.
    settings: any flag of `octavo serve`, such as max_model_len=4096, tensor_parallel_size=2,
        gpu_memory_utilization=0.8, max_num_seqs=64, enforce_eager=True.

    The constructor returns when the model is loaded. Its processes end with `close()`, with the
    `with` block, or with this process, however that ends. One thread uses an engine.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        start_limit_s: float = 600.0,
        show_progress: bool = True,
        **settings: str | float | bool,
    ) -> None:
        flags = service_flags(settings)
        max_in_flight = min(_MAX_IN_FLIGHT, int(settings.get("max_queue_requests", _MAX_IN_FLIGHT)))
        require_service_packages("octavo.Engine", has_local_workers=True)
        folder = obtain_model(os.fspath(model), is_shown=show_progress)
        self._service = LocalService(
            ["--model", str(folder.path), "--served-model-name", folder.name, *flags]
        )
        _start(self._service, limit_s=start_limit_s, is_shown=show_progress)
        self._loop = ClientLoop(self._service.target, max_in_flight=max_in_flight)
        self._loop.start()
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._service)
        self._open = OpenRequests()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Generation]:
        """The results for all prompts, in their order; one `params` for all, or one for each.

        A prompt is text, a list of token ids, or a dict with `prompt` or `prompt_token_ids`. The
        first error of a prompt cancels the others and is raised, with the prompt's place in a note.
        """
        many = _prompts(prompts)
        jobs = [
            Job(request_id=_new_id(), prompt=prompt, params=one)
            for prompt, one in zip(many, _one_each(params, len(many)), strict=True)
        ]
        return self._run(jobs, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: MessagesInput | Sequence[MessagesInput],
        params: Params = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Generation]:
        """The answers to one conversation or a list of them, through the model's chat template."""
        many = _conversations(messages)
        jobs = [
            Job(request_id=_new_id(), messages=conversation, params=one)
            for conversation, one in zip(many, _one_each(params, len(many)), strict=True)
        ]
        return self._run(jobs, use_tqdm=use_tqdm)

    def add_request(
        self,
        prompt: PromptInput,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> str:
        """Begins a request and returns its id; `step` brings its result."""
        self._check_open()
        name = request_id or _new_id()
        if name in self._open:
            raise ValueError(f"request id {name!r} is in use")
        job = Job(request_id=name, prompt=prompt, params=params)
        future = self._loop.submit(job, on_delta=_ignore)
        self._open.add(name, future)
        return name

    def step(self) -> list[Generation]:
        """Waits until at least one request has ended; returns all that have, oldest end first.

        Returns an empty list when there is none to wait for. Raises the error of a request that
        failed (its `request_id` says which); the next call goes on with the others.
        """
        self._check_open()
        try:
            return self._open.take_ended()
        except ServiceError as error:
            self._raise_if_service_ended(error)
            raise

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has something to wait for."""
        return len(self._open) > 0

    def close(self) -> None:
        """Cancels what runs and ends the engine's processes. Repeating it is harmless."""
        self._finalizer()

    def _run(self, jobs: Sequence[Job], *, use_tqdm: bool) -> list[Generation]:
        self._check_open()
        meter = Meter(clock=time.monotonic)
        futures = [self._loop.submit(job, on_delta=meter.note) for job in jobs]
        try:
            return wait_for_all(futures, meter=meter, use_tqdm=use_tqdm)
        except ServiceError as error:
            self._raise_if_service_ended(error)
            raise

    def _raise_if_service_ended(self, error: ServiceError) -> None:
        if not self._service.is_running():
            raise self._service.failure("the engine's service ended") from error

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise ClientClosed("this engine is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _start(service: LocalService, *, limit_s: float, is_shown: bool) -> None:
    if not is_shown:
        service.start(limit_s=limit_s)
        return
    with display_progress() as display:
        service.start(
            limit_s=limit_s, on_progress=lambda line: display.line("Starting the service", line)
        )


def _shut_down(loop: ClientLoop, service: LocalService) -> None:
    try:
        loop.close()
    finally:
        service.stop()


def _prompts(prompts: PromptInput | Sequence[PromptInput]) -> list[PromptInput]:
    """A list of prompts; a lone text, dict or list of ids is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    many = list(prompts)
    if many and all(isinstance(one, int) for one in many):
        return [many]  # type: ignore[list-item]  # all of them are ids
    return many  # type: ignore[return-value]  # not all of them are ids


def _conversations(messages: MessagesInput | Sequence[MessagesInput]) -> list[MessagesInput]:
    if isinstance(messages, str):
        return [messages]
    if is_conversation(messages):
        return [messages]  # type: ignore[list-item]  # what was just asked
    return list(messages)  # type: ignore[arg-type]  # a list of conversations


def _one_each(params: Params, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} params for {count} prompts: give one, or one for each")
    return list(params)


def _new_id() -> str:
    return uuid.uuid4().hex


def _ignore(request_id: str, delta: Delta) -> None:
    """Nobody watches a request that was added alone."""
