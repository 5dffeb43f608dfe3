"""Which block holds which tokens. Knows nothing of who holds a block, nor of requests.

A full block is found by a key chained over its parent's key and its own tokens; the chain's root is
salted with the tenant, so that tenants never share and nobody can aim at another's blocks. A hit
does not rest on the key alone: the block must hold these very tokens, and continue the very block
matched before it (its *parent*, known by a serial number that no two publications share). So equal
keys of different content cannot meet, and once a block is forgotten, whatever was published behind
it is out of reach, also after somebody publishes the same tokens anew.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from xxhash import xxh3_128_digest


class Link(NamedTuple):
    """The end of a chain of published blocks, where the next one attaches."""

    key: bytes
    identity: int | str  # serial of the publication; at a chain's root, the salt


class Match(NamedTuple):
    """Published blocks that hold a sequence's first tokens."""

    blocks: list[int]
    link: Link


class PrefixCache:
    """The index of full blocks by content. Tokens are int32 bytes throughout."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        root: bytes,
        digest: Callable[[bytes], bytes] = xxh3_128_digest,
    ) -> None:
        self._block_bytes = 4 * block_size
        self._root = root
        self._digest = digest
        self._block_by_key: dict[bytes, int] = {}
        # What each block was published with, as columns: an object for each of a million blocks
        # would make the garbage collector stop everything for a quarter of a second.
        self._serials = array("q", bytes(8 * num_blocks))  # 0: not published
        self._keys = [b""] * num_blocks
        self._parents: list[int | str] = [0] * num_blocks
        self._tokens = [b""] * num_blocks
        self._last_serial = 0
        # Publications before this one are flushed: they stay until their block or key is met, so
        # that a flush takes no longer for a million blocks than for one.
        self._first_serial = 1
        self._num_findable = 0

    def __len__(self) -> int:
        """Blocks that can be found."""
        return self._num_findable

    def is_findable(self, block: int) -> bool:
        """Whether some chain of tokens leads to this block."""
        return self._serials[block] >= self._first_serial

    def root(self, salt: str) -> Link:
        """Where the chains of a tenant begin."""
        return Link(self._digest(self._root + salt.encode()), salt)

    def match(self, root: Link, tokens: bytes | bytearray, *, max_blocks: int) -> Match:
        """The longest chain of at most `max_blocks` blocks that holds the tokens' beginning."""
        size, digest = self._block_bytes, self._digest
        block_by_key, serials = self._block_by_key, self._serials
        parents, contents, first_serial = self._parents, self._tokens, self._first_serial
        blocks: list[int] = []
        key, identity = root.key, root.identity
        for start in range(0, min(max_blocks * size, len(tokens) - size + 1), size):
            piece = bytes(tokens[start : start + size])
            next_key = digest(key + piece)
            block = block_by_key.get(next_key)
            if block is None or parents[block] != identity or contents[block] != piece:
                break
            serial = serials[block]
            if serial < first_serial:
                break
            blocks.append(block)
            key, identity = next_key, serial
        return Match(blocks, Link(key, identity))

    def publish(self, block: int, parent: Link, tokens: bytes) -> tuple[Link, int | None]:
        """Makes a full block findable behind `parent`.

        Returns where the next block attaches, and the block that cannot be found any more since its
        key is needed (it held other content, or continued a block that is forgotten). Where another
        block holds the same content already, that one stays findable and this one private.
        """
        key = self._digest(parent.key + tokens)
        if self._serials[block]:
            assert not self.is_findable(block), f"block {block} is published already"
            self.forget([block])  # what it held before a flush
        displaced = None
        standing = self._block_by_key.get(key)
        if standing is not None:
            if self.is_findable(standing):
                is_same = self._parents[standing] == parent.identity
                if is_same and self._tokens[standing] == tokens:
                    return Link(key, self._serials[standing]), None
                displaced = standing
            self.forget([standing])
        self._last_serial += 1
        self._num_findable += 1
        self._block_by_key[key] = block
        self._serials[block], self._keys[block] = self._last_serial, key
        self._parents[block], self._tokens[block] = parent.identity, tokens
        return Link(key, self._last_serial), displaced

    def forget(self, blocks: Iterable[int]) -> None:
        """Makes blocks unfindable; passes over those that are already."""
        serials, keys, tokens = self._serials, self._keys, self._tokens
        for block in blocks:
            serial = serials[block]
            if serial:
                del self._block_by_key[keys[block]]
                serials[block], keys[block], tokens[block] = 0, b"", b""
                self._num_findable -= serial >= self._first_serial

    def flush(self) -> None:
        """Makes every block unfindable."""
        self._first_serial = self._last_serial + 1
        self._num_findable = 0
