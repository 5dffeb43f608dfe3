"""What lives, and why it waits."""

from scheduler_svc.core.listing import Listing, OutputView, Waiting, WaitReason, Wish
from scheduler_svc.core.request import EndReason, NewRequest
from tests.unit.core.replica import OWNER, Replica, limits, prompt_of


def listing(replica: Replica, *, limit: int = 100, **fields: object) -> Listing:
    wish = Wish(limit=limit, **fields)  # type: ignore[arg-type]
    return replica.core.list_requests(wish, replica.now)


def output(replica: Replica, new: NewRequest, index: int = 0) -> OutputView:
    views = {each.request_id: each for each in listing(replica, wants_blocks=True).requests}
    return views[new.request_id].outputs[index]


def test_a_running_request_shows_its_progress_and_blocks() -> None:
    replica = Replica(limits(max_num_batched_tokens=8))
    new = replica.add(prompt_of(20), tenant="a", priority=-2)
    replica.step()
    view = output(replica, new)
    assert (view.is_decoding, view.wait_reason, view.num_computed_tokens) == (False, None, 16), (
        "two steps are planned"
    )
    assert len(view.block_ids) == view.num_blocks == 5
    for _ in range(4):
        replica.step()
    view = output(replica, new)
    assert view.is_decoding
    assert view.num_tokens == len(replica.tokens(new)) > 0
    (request,) = listing(replica).requests
    assert (request.tenant, request.priority, request.num_prompt_tokens) == ("a", -2, 20)
    assert request.has_reader
    assert request.outputs[0].block_ids == (), "only named when asked for"


def test_says_why_an_output_waits() -> None:
    replica = Replica(limits(max_num_seqs=2, num_blocks=12))
    replica.add(prompt_of(20), max_tokens=20)
    many = replica.add(prompt_of(8, first=2), num_outputs=2)
    big = replica.add(prompt_of(30, first=3))
    assert output(replica, big).wait_reason is WaitReason.TURN
    assert output(replica, many, 1).wait_reason is WaitReason.PROMPT
    replica.step()
    assert output(replica, big).wait_reason is WaitReason.SLOT
    replica.core.cancel(tenant="tenant", request_id=many.request_id, now=replica.now)
    replica.hear()
    replica.step()
    assert output(replica, big).wait_reason is WaitReason.BLOCKS
    replica.core.leave_epoch(replica.now, was_fatal=False)
    assert output(replica, big).wait_reason is WaitReason.WORKERS


def test_outputs_that_do_not_run_are_counted_by_their_reason() -> None:
    replica = Replica(limits(max_num_seqs=2, num_blocks=12))
    assert set(replica.core.count_waiting()) == set(WaitReason)
    first = replica.add(prompt_of(20), max_tokens=20)
    many = replica.add(prompt_of(8, first=2), num_outputs=2)
    replica.add(prompt_of(30, first=3))

    def waiting() -> dict[WaitReason, Waiting]:
        return {
            reason: found
            for reason, found in replica.core.count_waiting().items()
            if found.num_outputs
        }

    assert waiting() == {
        WaitReason.TURN: Waiting(3, 20 + 8 + 30),
        WaitReason.PROMPT: Waiting(1, 8),
    }
    replica.step()
    assert waiting() == {WaitReason.SLOT: Waiting(2, 8 + 30)}
    num_made = len(replica.tokens(first)) + len(replica.tokens(many))
    assert num_made > 0
    replica.core.leave_epoch(replica.now, was_fatal=False)
    assert waiting() == {
        WaitReason.WORKERS: Waiting(3, 20 + 8 + 30 + num_made),
        WaitReason.PROMPT: Waiting(1, 8),
    }


def test_an_output_that_nobody_reads_waits_for_a_reader() -> None:
    replica = Replica(max_orphan_tokens=2)
    new = replica.add(max_tokens=20, keep_for_s=50.0)
    replica.step()
    replica.core.detach(owner=OWNER, number=new.number, cancel=False, now=replica.now)
    for _ in range(8):
        replica.step()
    assert output(replica, new).wait_reason is WaitReason.READER
    assert not listing(replica).requests[0].has_reader


def test_a_suspect_waits_to_run_alone() -> None:
    replica = Replica()
    suspect = replica.add(prompt_of(6))
    for _ in range(2):
        replica.issue()
        replica.restart_epoch(was_fatal=True)
    assert output(replica, suspect).wait_reason is WaitReason.ALONE


def test_an_ended_output_of_a_living_request_is_listed() -> None:
    replica = Replica()
    new = replica.add(num_outputs=2, max_tokens=30)
    for _ in range(3):
        replica.step()
    replica.core.finish_output(
        owner=OWNER,
        number=new.number,
        output_index=0,
        num_tokens=1,
        reason=EndReason.STOP_STRING,
        stop_string="stop",
        now=replica.now,
    )
    views = listing(replica).requests[0].outputs
    assert [view.has_ended for view in views] == [True, False]
    assert views[0].num_tokens == 1
    assert views[0].num_blocks == 0


def test_pages_hold_every_living_request_once() -> None:
    replica = Replica(limits(max_num_seqs=2))
    names = [replica.add(prompt_of(4, first=n)).request_id for n in range(7)]
    seen: list[str] = []
    after = 0
    while True:
        page = listing(replica, limit=3, after=after)
        assert page.num_live == 7
        seen += [request.request_id for request in page.requests]
        if not page.next_after:
            break
        after = page.next_after
    assert seen == names
    replica.run()
    assert listing(replica) == Listing(
        requests=(), num_live=0, next_after=0, tenants=listing(replica).tenants
    )


def test_tenants_show_their_hit_rates() -> None:
    replica = Replica()
    for _ in range(2):
        replica.add(prompt_of(17), tenant="repeats")
        replica.run()
    replica.add(prompt_of(9), tenant="once")
    replica.run()
    replica.add(prompt_of(9), tenant="waits")
    views = {view.tenant: view for view in listing(replica).tenants}
    assert list(views) == ["repeats", "once", "waits"]
    repeats = views["repeats"]
    assert (repeats.num_prompt_tokens, repeats.num_cached_tokens) == (34, 16)
    assert (views["once"].num_prompt_tokens, views["once"].num_cached_tokens) == (9, 0)
    assert (views["waits"].num_live, views["waits"].num_waiting) == (1, 1)
    only = listing(replica, tenant="once")
    assert [view.tenant for view in only.tenants] == ["once"]
    assert only.num_live == 0


def test_listings_are_bounded_however_many_tenants_there_are() -> None:
    replica = Replica()
    for n in range(600):
        replica.add(prompt_of(2, first=n), tenant=f"tenant-{n}", max_tokens=1)
        replica.run()
    assert len(listing(replica).tenants) == 64
    assert len(replica.core._lifecycle.tenant_hits._hits) == 512


def test_a_flush_says_how_many_blocks_could_be_found() -> None:
    replica = Replica()
    replica.add(prompt_of(17), max_tokens=1)
    replica.run()
    assert replica.core.flush_prefix_cache() == 4
    assert replica.core.flush_prefix_cache() == 0
