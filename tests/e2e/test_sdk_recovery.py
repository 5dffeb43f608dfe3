"""The SDK's users see one unbroken iterator, whatever is killed behind it."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import octavo
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens

pytestmark = pytest.mark.chaos
AnyStream = octavo.Stream | octavo.AsyncStream
NUM_STREAMS = 8
NUM_TOKENS = 120
NUM_BEFORE = 15  # tokens of each stream before anything is killed
LIMIT_S = 60.0
FLAGS = ["--step-deadline-floor", "1", "--frontends", "2"]
HASH_WORKER = ["--step-ms", "10"]


@dataclass
class Wish:
    """One request; `num_seen` counts its tokens while they come, `is_over` tells its end."""

    index: int
    num_outputs: int = 1
    stop: str = ""
    num_seen: int = 0
    is_over: bool = False

    @property
    def prompt(self) -> list[int]:
        return [(7 * self.index + j) % NUM_IDS for j in range(5 + 9 * self.index)]

    @property
    def params(self) -> octavo.SamplingParams:
        return octavo.SamplingParams(
            max_tokens=NUM_TOKENS,
            temperature=1.0,
            seed=self.index,
            n=self.num_outputs,
            stop=[self.stop] if self.stop else [],
            ignore_eos=True,
        )

    def note(self, delta: octavo.Delta) -> None:
        self.num_seen += len(delta.token_ids)

    def check(self, result: octavo.Generation, undisturbed: octavo.Generation) -> None:
        """The same bytes as of a stream that nothing befell, and for one output of the model."""
        assert result.outputs == undisturbed.outputs
        assert result.usage.completion_tokens == undisturbed.usage.completion_tokens
        expected = expected_tokens(
            self.prompt, NUM_TOKENS, seed=self.index, temperature=1.0, vocab_size=NUM_IDS
        )
        assert result.token_ids == tuple(expected[: len(result.token_ids)])
        assert self.stop or len(result.token_ids) == NUM_TOKENS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture(scope="module")
def standby(model: Path) -> Iterator[Replica]:
    with running_replica(model, flags=FLAGS, hash_worker=HASH_WORKER) as replica:
        yield replica


async def _undisturbed(target: str) -> tuple[list[Wish], list[octavo.Generation]]:
    """Requests of every kind, and what each of them gives."""
    async with octavo.AsyncClient(target, timeout=LIMIT_S) as client:
        wishes = [Wish(i, num_outputs=1 + (i % 3 == 1)) for i in range(NUM_STREAMS)]
        results = await _generate_all(client, wishes)
        for wish, result in list(zip(wishes, results, strict=True))[::3]:
            wish.stop = result.text[-40:-36]  # ends it, far behind what is killed
        results = await _generate_all(client, wishes)
    ends = [result.finish_reason for result in results]
    assert {*ends} == {octavo.FinishReason.STOP_STRING, octavo.FinishReason.LENGTH}
    return wishes, results


async def _generate_all(client: octavo.AsyncClient, wishes: list[Wish]) -> list[octavo.Generation]:
    return await asyncio.gather(*(client.generate(w.prompt, params=w.params) for w in wishes))


async def _read(client: octavo.AsyncClient, wish: Wish) -> AnyStream:
    stream = client.stream(wish.prompt, params=wish.params)
    async for delta in stream:
        wish.note(delta)
    wish.is_over = True
    return stream


def _read_blocking(client: octavo.Client, wish: Wish) -> AnyStream:
    stream = client.stream(wish.prompt, params=wish.params)
    for delta in stream:
        wish.note(delta)
    wish.is_over = True
    return stream


async def _all_flow(wishes: list[Wish], replica: Replica) -> None:
    def flows() -> bool:
        return all(wish.num_seen >= NUM_BEFORE or wish.is_over for wish in wishes)

    await asyncio.to_thread(wait_until, flows, limit_s=LIMIT_S, otherwise=replica.log)


async def _befall(
    targets: list[str], wishes: list[Wish], replica: Replica, blow: Callable[[], None]
) -> list[AnyStream]:
    """Reads every wish, half of them without asyncio, while the blow falls."""
    async with octavo.AsyncClient(targets, timeout=LIMIT_S) as aio:
        with octavo.Client(targets, timeout=LIMIT_S) as client:
            half = len(wishes) // 2
            readers: list[asyncio.Task[AnyStream]] = [
                *(asyncio.create_task(_read(aio, wish)) for wish in wishes[:half]),
                *(
                    asyncio.create_task(asyncio.to_thread(_read_blocking, client, wish))
                    for wish in wishes[half:]
                ),
            ]
            await _all_flow(wishes, replica)
            blow()
            return await asyncio.gather(*readers)


async def test_streams_go_on_when_every_frontend_is_killed(standby: Replica) -> None:
    wishes, undisturbed = await _undisturbed(standby.target)

    def blow() -> None:
        for frontend in [standby.process(name) for name in ("frontend-0", "frontend-1")]:
            frontend.kill()

    streams = await _befall([standby.target], wishes, standby, blow)
    for wish, stream, whole in zip(wishes, streams, undisturbed, strict=True):
        assert stream.num_reconnects > 0
        wish.check(stream.partial(), whole)
    standby.wait_ready()


async def test_streams_go_on_at_another_replica_when_theirs_is_lost(
    standby: Replica, model: Path
) -> None:
    wishes, undisturbed = await _undisturbed(standby.target)
    with running_replica(model, flags=FLAGS, hash_worker=HASH_WORKER) as lost:

        def blow() -> None:
            for process in lost.processes():  # the supervisor first, so that none comes back
                process.kill()

        streams = await _befall([lost.target, standby.target], wishes, lost, blow)
    for wish, stream, whole in zip(wishes, streams, undisturbed, strict=True):
        assert stream.num_reconnects > 0
        assert _replica_of(stream) == whole.start.replica  # type: ignore[union-attr]  # it ran
        wish.check(stream.partial(), whole)


async def test_streams_go_on_at_another_replica_when_theirs_stops_before_their_end(
    standby: Replica, model: Path
) -> None:
    wishes, undisturbed = await _undisturbed(standby.target)
    flags = [*FLAGS, "--withdrawal-window", "0.1", "--drain-limit", "0.2"]
    with running_replica(model, flags=flags, hash_worker=["--step-ms", "25"]) as leaving:

        def blow() -> None:
            leaving.supervisor.send_signal(signal.SIGTERM)

        streams = await _befall([leaving.target, standby.target], wishes, leaving, blow)
        assert leaving.supervisor.wait(LIMIT_S) == 0
    standing = {whole.start.replica for whole in undisturbed if whole.start}
    assert standing & {_replica_of(stream) for stream in streams}
    for wish, stream, whole in zip(wishes, streams, undisturbed, strict=True):
        wish.check(stream.partial(), whole)


def _replica_of(stream: AnyStream) -> str:
    assert stream.start is not None
    return stream.start.replica


class Wire:
    """A way to a service that can be cut: every connection through it breaks at once."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._ends: set[asyncio.StreamWriter] = set()
        self.num_connections = 0

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """Its near end, as a target."""
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            yield f"{host}:{port}"
            self.cut()

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._ends |= {writer, far_writer}
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        self._ends -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()


async def test_streams_and_whole_answers_go_on_when_their_connection_is_cut_again_and_again(
    standby: Replica,
) -> None:
    wishes, undisturbed = await _undisturbed(standby.target)
    host, _, port = standby.target.rpartition(":")
    wire = Wire(host, int(port))
    async with wire.laid() as target, octavo.AsyncClient(target, timeout=LIMIT_S) as client:
        half = len(wishes) // 2
        readers = [asyncio.create_task(_read(client, wish)) for wish in wishes[:half]]
        answers = asyncio.create_task(_generate_all(client, wishes[half:]))
        for _ in range(3):
            for wish in wishes:
                wish.num_seen = 0
            await _all_flow(wishes[:half], standby)
            wire.cut()
        results = [(await reader).partial() for reader in readers] + await answers
    assert wire.num_connections > 1
    for wish, result, whole in zip(wishes, results, undisturbed, strict=True):
        wish.check(result, whole)
