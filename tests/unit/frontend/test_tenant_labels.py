"""Counters by tenant: right, agreed on by all frontends, and so many series at most."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.tenant_labels import MAX_LABELS, OTHER, TenantLabels
from scheduler_svc.security.keys import KeyRing
from tests.unit.frontend.frontend_service import Service
from tests.unit.frontend.scripted_core import output
from tests.unit.frontend.stream_reader import Reader, generation
from tests.unit.frontend.test_vectors import answer_scores, answer_vector, embed, score


def ring(path: Path, tenants: list[str]) -> KeyRing:
    """The keys of a file with one key for each."""
    lines = [
        json.dumps({"tenant": name, "sha256": hashlib.sha256(str(place).encode()).hexdigest()})
        for place, name in enumerate(tenants)
    ]
    path.write_text("\n".join(lines))
    keys = KeyRing(flag="--api-keys-file", path=str(path))
    keys.load()
    return keys


def test_ten_thousand_tenants_are_a_hundred_names_and_one_for_the_rest(tmp_path: Path) -> None:
    """MET-05, and the same names whatever order the tenants call in."""
    tenants = [f"t{number}" for number in range(10_000)]
    keys = ring(tmp_path / "keys", tenants)
    first, second = TenantLabels(keys), TenantLabels(keys)
    shown = {first.of(tenant) for tenant in tenants}
    assert shown == {*tenants[:MAX_LABELS], OTHER}
    assert {second.of(tenant) for tenant in reversed(tenants)} == shown
    assert first.of("nobody") == OTHER


def test_names_follow_the_file_of_keys(tmp_path: Path) -> None:
    keys = ring(tmp_path / "keys", ["a", "a", "b"])
    labels = TenantLabels(keys)
    assert [labels.of(tenant) for tenant in ("a", "b", "c")] == ["a", "b", OTHER]
    ring(tmp_path / "keys", ["c"])
    keys.load()
    assert [labels.of(tenant) for tenant in ("a", "c")] == [OTHER, "c"]


def counted(service: Service) -> dict[str, float]:
    """The counters of the tenant that everybody is without keys."""
    return {
        one.name: one.counter
        for one in service.services.traffic.render()
        if list(one.labels) == ["default"]
    }


async def test_a_request_counts_once_and_its_tokens_where_they_were_sent(service: Service) -> None:
    core, ids = service.core, service.ids("abcdef")
    reader = Reader(service.stub, generation("hello", request_id="mine", keep_for_s=30))
    submit = await core.expect("submit")
    await core.accept(submit)
    await core.deliver(submit.number, ids[:4])
    await reader.read_one()
    reader.call.cancel()
    await core.expect("detach")
    await service.until(lambda: service.services.calls.num_open == 0)
    assert counted(service) == {
        "tenant_requests": 1,
        "tenant_prompt_tokens": 5,
        "tenant_generation_tokens": 4,
    }
    wanted = api.AttachRequest(request_id="mine", from_tokens=[4])
    attach = Reader(service.stub, wanted, received=[4])
    number = (await core.expect("attach")).number
    await core.attached(number, submit, [output(ids, end=engine.END_REASON_LENGTH)])
    await attach.read_all()
    await service.until(lambda: service.services.calls.num_open == 0)
    assert counted(service) == {
        "tenant_requests": 1,
        "tenant_prompt_tokens": 5,
        "tenant_generation_tokens": 6,
    }


async def test_prompts_of_embed_and_score_count_as_those_of_generations(service: Service) -> None:
    core = service.core
    embedding = embed(service, "ab", "xyz")
    for submit in [await core.expect("submit") for _ in range(2)]:
        await core.accept(submit, max_tokens=1)
        await answer_vector(service, submit, 1.0)
    await embedding
    wanted = {"tenant_requests": 2, "tenant_prompt_tokens": 5}
    assert counted(service) == wanted
    for _ in range(2):
        await core.expect("finish")
    scoring = score(service, "abc", "de")
    submit = await core.expect("submit")
    assert counted(service)["tenant_prompt_tokens"] == 5, "the core has not taken it yet"
    await core.accept(submit, max_tokens=1)
    await answer_scores(service, submit)
    await scoring
    assert counted(service) == {"tenant_requests": 3, "tenant_prompt_tokens": 10}
