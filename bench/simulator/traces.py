"""Arrivals of conversations, made from a seed. Knows nothing of who serves them.

Equal arguments make equal traces; two traces with different seeds share no text.
"""

from collections.abc import Iterator
from random import Random

from bench.simulator.jobs import Conversation, Turn
from bench.simulator.prompts import Segment

MAX_SEED = 4095
# The lengths of the benchmark everybody quotes: uniform, prompt and output alike.
_LENGTHS = (100, 1024)


class _Texts:
    """New segments, which no trace of another seed has."""

    def __init__(self, seed: int) -> None:
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed must be from 0 to {MAX_SEED}, got {seed}")
        self._last_key = seed << 20

    def fresh(self, num_tokens: int) -> Segment:
        """A segment of its own."""
        self._last_key += 1
        return Segment(self._last_key, num_tokens)


def merged(*traces: list[Conversation]) -> list[Conversation]:
    """Several traces as one."""
    everything = [conversation for trace in traces for conversation in trace]
    return sorted(everything, key=lambda conversation: conversation.start_s)


def _moments(draw: Random, *, rate: float, seconds: float) -> Iterator[float]:
    """Poisson arrivals."""
    now = draw.expovariate(rate)
    while now < seconds:
        yield now
        now += draw.expovariate(rate)


def _single(
    draw: Random, texts: _Texts, start_s: float, tenant: str = "default", priority: int = 0
) -> Conversation:
    turn = Turn(
        message=(texts.fresh(draw.randint(*_LENGTHS)),),
        answer=texts.fresh(draw.randint(*_LENGTHS)),
        is_length_known=True,
    )
    return Conversation(start_s, (turn,), tenant, priority)


def poisson(
    *, rate: float, seconds: float, seed: int, tenant: str = "default", priority: int = 0
) -> list[Conversation]:
    """Requests a second of the quoted benchmark's lengths, at random moments."""
    draw, texts = Random(seed), _Texts(seed)
    moments = _moments(draw, rate=rate, seconds=seconds)
    return [_single(draw, texts, moment, tenant, priority) for moment in moments]


def bursts(
    *, rate: float, burst: int, every_s: float, seconds: float, seed: int
) -> list[Conversation]:
    """As `poisson`, and so many more at once every so often."""
    draw, texts = Random(seed), _Texts(seed)
    moments = list(_moments(draw, rate=rate, seconds=seconds))
    for count in range(1, int(seconds / every_s) + 1):
        moments += [count * every_s] * burst
    return [_single(draw, texts, moment) for moment in sorted(moments)]


def batch(*, num_requests: int, seed: int) -> list[Conversation]:
    """The quoted benchmark itself: all requests at once."""
    draw, texts = Random(seed), _Texts(seed)
    return [_single(draw, texts, 0.0) for _ in range(num_requests)]


def documents(
    *, rate: float, seconds: float, seed: int, num_prompt_tokens: int = 30_000
) -> list[Conversation]:
    """Long prompts with short answers, at random moments."""
    draw, texts = Random(seed), _Texts(seed)
    moments = _moments(draw, rate=rate, seconds=seconds)
    return [_document(texts, moment, num_prompt_tokens) for moment in moments]


def document(*, start_s: float, num_prompt_tokens: int, seed: int) -> list[Conversation]:
    """One long prompt."""
    return [_document(_Texts(seed), start_s, num_prompt_tokens)]


def _document(texts: _Texts, start_s: float, num_prompt_tokens: int) -> Conversation:
    return Conversation(start_s, (Turn((texts.fresh(num_prompt_tokens),), texts.fresh(200)),))


def streams(*, num_streams: int, num_answer_tokens: int, seed: int) -> list[Conversation]:
    """Short prompts with answers of equal length, all at once."""
    texts = _Texts(seed)
    turns = (
        Turn((texts.fresh(128),), texts.fresh(num_answer_tokens), is_length_known=True)
        for _ in range(num_streams)
    )
    return [Conversation(0.0, (turn,)) for turn in turns]


def chat(
    *,
    rate: float,
    seconds: float,
    seed: int,
    num_apps: int = 200,
    mean_turns: float = 5.0,
    mean_think_s: float = 6.0,
    tenant: str = "default",
) -> list[Conversation]:
    """Conversations, so many a second that begin. Those of one app begin with its instructions."""
    draw, texts = Random(seed), _Texts(seed)
    apps = [texts.fresh(draw.randint(200, 800)) for _ in range(num_apps)]
    return [
        Conversation(
            moment, _chat_turns(draw, texts, draw.choice(apps), mean_turns, mean_think_s), tenant
        )
        for moment in _moments(draw, rate=rate, seconds=seconds)
    ]


def _chat_turns(
    draw: Random, texts: _Texts, instructions: Segment, mean_turns: float, mean_think_s: float
) -> tuple[Turn, ...]:
    num_turns = 1
    while num_turns < 20 and draw.random() < 1 - 1 / mean_turns:
        num_turns += 1
    turns = []
    for index in range(num_turns):
        message = texts.fresh(_skewed(draw, median=60, most=2000))
        turns.append(
            Turn(
                message=(instructions, message) if index == 0 else (message,),
                answer=texts.fresh(_skewed(draw, median=200, most=2000)),
                think_s=draw.expovariate(1 / mean_think_s) if index else 0.0,
            )
        )
    return tuple(turns)


def _skewed(draw: Random, *, median: int, most: int) -> int:
    """Log-normal, sigma 0.8: the mean is 1.38 times the median."""
    length = median * draw.lognormvariate(0.0, 0.8)
    return max(8, min(most, round(length)))
