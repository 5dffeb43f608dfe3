"""Many clients of all kinds that never stop asking, and compare what they get with a calm run.

Knows nothing of what befalls the service meanwhile.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Protocol

import octavo
from octavo import SamplingParams
from tests.e2e.plain_reader import PlainReader

NUM_CLIENTS = 48
KINDS = ("sdk", "outputs", "stop", "plain", "slow", "cancel", "sdk", "greedy")
MOST_TOKENS = 160
LIMIT_S = 120.0
# Fewer may be what was on its way to the client before.
_NEWS_THAT_PROVE_LIFE = 4


@dataclass(frozen=True)
class Wish:
    """One request. Its answer is a function of the prompt, the seed and nothing else."""

    index: int
    kind: str
    prompt: list[int]
    params: SamplingParams


class Expected(Protocol):
    """What a calm run gave for a wish."""

    @property
    def outputs(self) -> tuple[octavo.Completion, ...]:
        """All outputs, whole."""


@dataclass
class Tally:
    """What the crowd has seen so far."""

    num_streams: int = 0
    num_cancelled: int = 0
    num_tokens: int = 0
    num_reconnects: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Client:
    """One of the crowd; `num_news` counts what came."""

    wish: Wish
    num_news: int = 0
    doing: str = ""
    longest_silence_s: float = 0.0
    _news_at: float = field(default_factory=time.monotonic)

    @property
    def is_steady(self) -> bool:
        """Whether it always reads: its silences are the service's."""
        return self.wish.kind not in ("slow", "plain")

    def note_news(self) -> None:
        now = time.monotonic()
        self.num_news += 1
        self.longest_silence_s = max(self.longest_silence_s, now - self._news_at)
        self._news_at = now


def make_wishes(num_ids: int, *, seed: int = 5, num_tokens: int = MOST_TOKENS) -> list[Wish]:
    """One wish for each client; every second prompt shares its first blocks with others."""
    draw = random.Random(seed)
    shared = [draw.randrange(num_ids) for _ in range(40)]
    wishes = []
    for index, kind in enumerate(islice(cycle(KINDS), NUM_CLIENTS)):
        own = [draw.randrange(num_ids) for _ in range((1, 15, 16, 33, 70)[index % 5])]
        params = SamplingParams(
            max_tokens=draw.randrange(num_tokens // 2, num_tokens),
            temperature=0.0 if kind == "greedy" else 1.0,
            seed=index,
            n=2 if kind == "outputs" else 1,
            ignore_eos=True,
        )
        wishes.append(Wish(index, kind, shared + own if index % 2 else own, params))
    return wishes


async def calm_answers(target: str, wishes: Sequence[Wish]) -> tuple[list[Wish], list[Expected]]:
    """The wishes, some with a stop string found in their text, and what a calm service answers."""
    async with octavo.AsyncClient(target, timeout=LIMIT_S) as client:
        answers = await asyncio.gather(
            *(client.generate(w.prompt, params=w.params) for w in wishes)
        )
        stopped = [
            Wish(w.index, w.kind, w.prompt, _stopping_late(w.params, answer.text))
            if w.kind == "stop"
            else w
            for w, answer in zip(wishes, answers, strict=True)
        ]
        whole = await asyncio.gather(*(client.generate(w.prompt, params=w.params) for w in stopped))
    return stopped, list(whole)


def _stopping_late(params: SamplingParams, text: str) -> SamplingParams:
    at = 3 * len(text) // 4
    return SamplingParams(
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        seed=params.seed,
        stop=[text[at : at + 4]],
        ignore_eos=True,
    )


class Crowd:
    """`living()` runs it; `moved_since` tells when everybody got something new."""

    def __init__(
        self, targets: Sequence[str], wishes: Sequence[Wish], expected: Sequence[Expected]
    ) -> None:
        self.tally = Tally()
        self.clients = [Client(wish) for wish in wishes]
        self._targets = list(targets)
        self._expected = expected
        self._draw = random.Random(9)
        self._num_asked = 0
        self._is_closing = False

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Everybody asks, again and again, until the block ends; then everybody gets the rest."""
        turned = [*self._targets[1:], *self._targets[:1]]
        async with (
            octavo.AsyncClient(self._targets) as some,
            octavo.AsyncClient(turned) as others,
        ):
            tasks = [
                asyncio.create_task(self._live(client, sdk, targets))
                for client, (sdk, targets) in zip(
                    self.clients,
                    cycle([(some, self._targets), (others, turned)]),
                    strict=False,
                )
            ]
            try:
                yield
                self._is_closing = True
                async with asyncio.timeout(LIMIT_S):
                    await asyncio.gather(*tasks)
            except TimeoutError:
                stuck = [client.doing for client in self.clients if client.doing]
                self.tally.problems.append(f"never ended: {stuck}")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def moved(self, *, limit_s: float = LIMIT_S) -> list[float]:
        """Waits until everybody got news; returns the longest silence of each steady client."""
        before = [client.num_news for client in self.clients]
        for client in self.clients:
            client.longest_silence_s = 0.0
        ends_at = time.monotonic() + limit_s
        while not self.tally.problems:
            still = [
                client
                for client, known in zip(self.clients, before, strict=True)
                if client.num_news - known < _NEWS_THAT_PROVE_LIFE
            ]
            if not still:
                break
            if time.monotonic() > ends_at:
                stuck = [(client.wish.kind, client.doing) for client in still]
                self.tally.problems.append(f"no news for {limit_s} s: {stuck}")
            await asyncio.sleep(0.05)
        return [client.longest_silence_s for client in self.clients if client.is_steady]

    # --- inside ---

    async def _live(self, client: Client, sdk: octavo.AsyncClient, targets: Sequence[str]) -> None:
        wish = client.wish
        while not self._is_closing and not self.tally.problems:
            self._num_asked += 1
            request_id = f"{wish.kind}-{wish.index}-{self._num_asked}"
            client.doing = request_id
            try:
                if wish.kind == "plain":
                    await self._ask_plainly(client, targets, request_id)
                else:
                    await self._ask(client, sdk, request_id)
            except Exception as error:  # noqa: BLE001 - whatever it is, a stream was lost
                self.tally.problems.append(f"{request_id}: {type(error).__name__}: {error}")
        client.doing = ""

    async def _ask(self, client: Client, sdk: octavo.AsyncClient, request_id: str) -> None:
        wish = client.wish
        num_wanted = self._draw.randrange(1, 60) if wish.kind == "cancel" else None
        stream = sdk.stream(wish.prompt, params=wish.params, request_id=request_id)
        num_deltas = 0
        async with aclosing(stream):
            async for _ in stream:
                client.note_news()
                num_deltas += 1
                if num_deltas == num_wanted:
                    break
                if wish.kind == "slow":
                    await asyncio.sleep(self._draw.choice((0.02, 0.1, 0.4)))
            client.doing = f"{request_id}, {stream.num_reconnects} reconnects"
        self.tally.num_reconnects += stream.num_reconnects
        self._compare(wish, stream.partial().outputs, is_whole=stream.has_ended)

    async def _ask_plainly(self, client: Client, targets: Sequence[str], request_id: str) -> None:
        reader = PlainReader(
            targets, client.wish.prompt, client.wish.params, request_id, on_news=client.note_news
        )
        token_ids, text = await reader.read(self._pauses())
        [whole] = self._expected[client.wish.index].outputs
        self.tally.num_reconnects += reader.num_calls - 1
        self._count(len(token_ids), is_whole=True)
        if (tuple(token_ids), text) != (whole.token_ids, whole.text):
            self.tally.problems.append(f"{request_id}: other tokens than in the calm run")

    def _pauses(self) -> Iterator[tuple[int, float]]:
        """When a plain client leaves its stream, in tokens, and how long it stays away."""
        for _ in range(3):
            yield self._draw.randrange(1, 40), self._draw.choice((0.0, 0.05, 0.5))

    def _compare(self, wish: Wish, outputs: Sequence[octavo.Completion], *, is_whole: bool) -> None:
        for output in outputs:
            whole = self._expected[wish.index].outputs[output.index]
            got = (output.token_ids, output.text)
            expected = (whole.token_ids, whole.text)
            if not is_whole:
                expected = (
                    whole.token_ids[: len(output.token_ids)],
                    whole.text[: len(output.text)],
                )
            if got != expected or (is_whole and output.finish != whole.finish):
                self.tally.problems.append(f"wish {wish}: output {output.index} differs: {got}")
        if is_whole and len(outputs) != (wish.params.n or 1):
            self.tally.problems.append(f"wish {wish}: {len(outputs)} outputs")
        if not is_whole and wish.kind != "cancel":
            self.tally.problems.append(f"wish {wish}: the stream ended early")
        self._count(sum(len(output.token_ids) for output in outputs), is_whole=is_whole)

    def _count(self, num_tokens: int, *, is_whole: bool) -> None:
        self.tally.num_tokens += num_tokens
        self.tally.num_streams += is_whole
        self.tally.num_cancelled += not is_whole
