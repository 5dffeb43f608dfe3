"""Whatever somebody hostile sends, others are served, and memory and descriptors stay bounded.

The long part logs what it costs the others: ARGS='-o log_cli=true --log-cli-level=info'.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo
from tests.e2e.attacks import ATTACKS, TEMPLATE
from tests.e2e.calls import connected, generation, stream
from tests.e2e.chaos_run import quantile, tracebacks
from tests.e2e.replica import ROOT, Replica, running_replica, wait_until
from tests.e2e.test_long import rounds
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens

_LOG = logging.getLogger(__name__)
# pieces, and pieces a second
BRIEFLY = {
    "frames": (2_000, 1e9),
    "half-open": (300, 1e9),
    "slowloris": (600, 1e9),
    "giant": (6, 1e9),
    "bombs": (4, 1e9),
    "schemas": (18, 1e9),
    "ipc": (300, 1e9),
}
AT_LENGTH = {
    "frames": (100_000, 3_000.0),
    "half-open": (3_000, 100.0),
    "slowloris": (30_000, 1_000.0),
    "giant": (30, 1.0),
    "bombs": (30, 1.0),
    "schemas": (300, 5.0),
    "ipc": (3_000, 100.0),
}
MOST_GROWTH = 250 * 2**20
MOST_DESCRIPTORS = 32
NUM_TOKENS = 8
EVERY_S = 0.05
LIMIT_S = 120.0
CALM_S = 15.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    settings["chat_template"] = TEMPLATE
    path.write_text(json.dumps(settings), encoding="utf-8")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, hash_worker=["--step-ms", "5"]) as started:
        yield started


class Tenant:
    """Somebody who asks for a little, twenty times a second, and checks what comes."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._is_leaving = False
        self._num_asked = 0
        self.totals_s: list[float] = []
        self.num_wrong = 0

    async def ask_on(self) -> None:
        """Until `leave`."""
        running: set[asyncio.Task[None]] = set()
        async with octavo.AsyncClient(self._target, timeout=LIMIT_S) as client:
            while not self._is_leaving:
                task = asyncio.create_task(self._ask(client))
                running.add(task)
                task.add_done_callback(running.discard)
                await asyncio.sleep(EVERY_S)
            await asyncio.gather(*running)

    def leave(self) -> None:
        """Asks no more."""
        self._is_leaving = True

    def take_totals(self) -> list[float]:
        """How long each answer took since the last look, in seconds."""
        totals, self.totals_s = self.totals_s, []
        return totals

    async def _ask(self, client: octavo.AsyncClient) -> None:
        self._num_asked += 1
        prompt = [self._num_asked % NUM_IDS, 1, 2, 3]
        began_at = time.monotonic()
        answer = await client.generate(
            prompt, max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True
        )
        self.totals_s.append(time.monotonic() - began_at)
        expected = expected_tokens(prompt, NUM_TOKENS, vocab_size=NUM_IDS)
        self.num_wrong += list(answer.token_ids) != expected


async def _attack(replica: Replica, kind: str, count: int, per_s: float) -> None:
    command = [
        *(sys.executable, "-m", "tests.e2e.attacks", kind, "--target", replica.target),
        *("--run-dir", str(replica.run_dir), "--count", str(count), "--per-s", str(per_s)),
    ]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 0, f"{kind}: {said.decode()}"


def _sizes(replica: Replica) -> dict[int, tuple[int, int]]:
    return {p.pid: (p.memory_info().rss, p.num_fds()) for p in replica.processes()}


def _check_sizes(replica: Replica, before: dict[int, tuple[int, int]], kind: str) -> None:
    """No process is new, large, or holds what the attacker opened."""

    def too_much() -> list[str]:
        after = _sizes(replica)
        return [
            f"{pid}: {after.get(pid)} after {known}"
            for pid, known in before.items()
            if pid not in after
            or after[pid][0] > known[0] + MOST_GROWTH
            or after[pid][1] > known[1] + MOST_DESCRIPTORS
        ]

    wait_until(lambda: not too_much(), limit_s=30, otherwise=lambda: f"{kind}: {too_much()}")


async def _endure(
    replica: Replica, strength: dict[str, tuple[int, float]]
) -> dict[str, list[float]]:
    """Attacks in turn while a tenant works; how long its answers took during each, in seconds."""
    tenant = Tenant(replica.target)
    asking = asyncio.create_task(tenant.ask_on())
    await asyncio.sleep(20 * EVERY_S)
    totals_s: dict[str, list[float]] = {}
    for kind, (count, per_s) in strength.items():
        tenant.take_totals()
        before = await asyncio.to_thread(_sizes, replica)
        await _attack(replica, kind, count, per_s)
        totals_s[kind] = tenant.take_totals()
        await asyncio.to_thread(_check_sizes, replica, before, kind)
    tenant.leave()
    await asyncio.wait_for(asking, LIMIT_S)
    assert tenant.num_wrong == 0
    assert tracebacks(replica.log()) == []
    garbage_lines = [line for line in replica.log().splitlines() if " dropped " in line]
    assert len(garbage_lines) < 50
    return totals_s


async def test_others_are_served_during_every_attack(replica: Replica) -> None:
    assert set(BRIEFLY) == set(AT_LENGTH) == set(ATTACKS)
    await _endure(replica, BRIEFLY)
    answer = await asyncio.to_thread(_served, replica)
    assert len(answer) == 4


def _served(replica: Replica) -> list[int]:
    with connected(replica.target) as stub:
        [output] = stream(stub, generation([1, 2], max_tokens=4))
    return output.token_ids


@pytest.mark.long("hostile")
@pytest.mark.parametrize("kind", AT_LENGTH)
async def test_what_an_attack_costs_the_others(replica: Replica, kind: str) -> None:
    tenant = Tenant(replica.target)
    asking = asyncio.create_task(tenant.ask_on())
    await asyncio.sleep(CALM_S)
    tenant.leave()
    await asking
    calm = tenant.take_totals()
    count, per_s = AT_LENGTH[kind]
    strength = {kind: (max(2, count * rounds(100) // 100), per_s)}
    struck = (await _endure(replica, strength))[kind]
    times = quantile(struck, 0.95) / quantile(calm, 0.95)
    _LOG.info("others when calm: %s", _described(calm))
    _LOG.info("others under %s: %s, %.2f times", kind, _described(struck), times)
    sizes = [resident >> 20 for resident, _ in _sizes(replica).values()]
    _LOG.info("MiB of each process: %s", sizes)


def _described(totals_s: list[float]) -> str:
    middle, slow = (1000 * quantile(totals_s, share) for share in (0.5, 0.95))
    return f"{len(totals_s)} answers, median {middle:.1f} ms, p95 {slow:.1f} ms"


@pytest.mark.long("hostile")
async def test_pings_every_ten_seconds_during_a_long_prefill_are_welcome(model: Path) -> None:
    """A step of a minute: nothing is sent meanwhile, and clients ping to see whether we live."""
    flags = ["--step-deadline-floor", "120"]
    options = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    with running_replica(model, flags=flags, hash_worker=["--step-ms", "60000"]) as replica:
        async with octavo.AsyncClient(replica.target, channel_options=options) as client:
            answer = client.stream([1, 2, 3], max_tokens=1, temperature=0.0, ignore_eos=True)
            whole = await answer.result()
        assert answer.num_reconnects == 0
    assert list(whole.token_ids) == expected_tokens([1, 2, 3], 1, vocab_size=NUM_IDS)
