"""Which prefixes are found, and which must not be."""

from xxhash import xxh3_128_digest

from scheduler_svc.core.prefix_cache import Link, PrefixCache

SIZE = 4
ROOT = b"root"


def tokens(*ids: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def block_of(first: int) -> bytes:
    return tokens(*range(first, first + SIZE))


def new_cache() -> PrefixCache:
    return PrefixCache(num_blocks=16, block_size=SIZE, root=ROOT)


def publish_chain(cache: PrefixCache, blocks: list[int], pieces: list[bytes]) -> Link:
    link = cache.root("tenant")
    for block, piece in zip(blocks, pieces, strict=True):
        link, _ = cache.publish(block, link, piece)
    return link


def found(
    cache: PrefixCache, content: bytes, *, salt: str = "tenant", most: int = 100
) -> list[int]:
    return cache.match(cache.root(salt), content, max_blocks=most).blocks


def test_finds_the_longest_published_prefix() -> None:
    cache = new_cache()
    publish_chain(cache, [3, 5], [block_of(0), block_of(4)])
    assert found(cache, block_of(0) + block_of(4) + block_of(8)) == [3, 5]
    assert found(cache, block_of(0) + block_of(9)) == [3]
    assert found(cache, block_of(4)) == []


def test_a_partly_filled_block_is_not_looked_up() -> None:
    cache = new_cache()
    publish_chain(cache, [3], [block_of(0)])
    assert found(cache, tokens(0, 1, 2)) == []
    assert found(cache, block_of(0) + tokens(4)) == [3]


def test_matches_at_most_as_many_blocks_as_asked() -> None:
    cache = new_cache()
    publish_chain(cache, [3, 5], [block_of(0), block_of(4)])
    match = cache.match(cache.root("tenant"), block_of(0) + block_of(4), max_blocks=1)
    assert match.blocks == [3]
    link, _ = cache.publish(6, match.link, block_of(40))
    assert found(cache, block_of(0) + block_of(40)) == [3, 6]
    assert link != match.link


def test_tenants_do_not_share() -> None:
    cache = new_cache()
    publish_chain(cache, [3], [block_of(0)])
    assert found(cache, block_of(0), salt="other") == []


def test_ids_are_hashed_in_full_width() -> None:
    """PC-07: ids that agree in their low byte are different tokens."""
    cache = new_cache()
    publish_chain(cache, [3], [tokens(65, 66, 67, 68)])
    assert found(cache, tokens(65 + 256, 66 + 256, 67 + 256, 68 + 256)) == []


def test_equal_keys_of_other_tokens_do_not_meet() -> None:
    """PC-05: a hash that always collides still never gives another prefix's block."""
    cache = PrefixCache(num_blocks=16, block_size=SIZE, root=ROOT, digest=lambda _: b"same")
    link, displaced = cache.publish(3, cache.root("tenant"), block_of(0))
    assert displaced is None
    assert found(cache, block_of(4)) == []
    assert found(cache, block_of(0), salt="other") == []
    _, displaced = cache.publish(5, link, block_of(0))
    assert displaced == 3, "one key, one block"
    assert found(cache, block_of(0)) == [], "the same tokens in another place"


def test_the_second_block_of_same_content_stays_private() -> None:
    cache = new_cache()
    first = publish_chain(cache, [3], [block_of(0)])
    second = publish_chain(cache, [5], [block_of(0)])
    assert first == second, "both chains go on from the same place"
    assert found(cache, block_of(0)) == [3]
    assert not cache.is_findable(5)


def test_what_hung_on_a_forgotten_block_stays_out_of_reach() -> None:
    cache = new_cache()
    publish_chain(cache, [3, 5], [block_of(0), block_of(4)])
    cache.forget([3])
    assert found(cache, block_of(0) + block_of(4)) == []
    link = publish_chain(cache, [7], [block_of(0)])
    assert found(cache, block_of(0) + block_of(4)) == [7], "5 continued a block that is gone"
    _, displaced = cache.publish(8, link, block_of(4))
    assert displaced == 5
    assert found(cache, block_of(0) + block_of(4)) == [7, 8]


def test_forgetting_twice_is_harmless() -> None:
    cache = new_cache()
    publish_chain(cache, [3], [block_of(0)])
    cache.forget([3])
    cache.forget([3])
    assert len(cache) == 0


def test_the_root_cannot_be_guessed_from_the_tokens() -> None:
    cache = new_cache()
    other = PrefixCache(num_blocks=16, block_size=SIZE, root=b"other root")
    assert cache.root("tenant") != other.root("tenant")
    assert cache.root("tenant").key != xxh3_128_digest(b"tenant")
