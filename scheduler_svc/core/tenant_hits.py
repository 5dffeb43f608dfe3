"""What the prefix cache gave each tenant. Knows no request; remembers so many tenants only."""

from collections import OrderedDict
from dataclasses import dataclass

_MAX_TENANTS = 512


@dataclass(slots=True)
class Hits:
    """Prompt tokens of requests that began to run, and those of them that were cached."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0


class TenantHits:
    """Counts by tenant; the tenant idle for longest is forgotten for a new one."""

    def __init__(self) -> None:
        self._hits: OrderedDict[str, Hits] = OrderedDict()

    def note(self, tenant: str, *, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A request began to run."""
        hits = self._hits.setdefault(tenant, Hits())
        hits.num_prompt_tokens += num_prompt_tokens
        hits.num_cached_tokens += num_cached_tokens
        self._hits.move_to_end(tenant)
        if len(self._hits) > _MAX_TENANTS:
            self._hits.popitem(last=False)

    def of(self, tenant: str) -> Hits:
        """A tenant's counts; zeros for one that is not known."""
        return self._hits.get(tenant, Hits())

    def most(self, count: int) -> list[str]:
        """The tenants with the most prompt tokens, the first one first."""
        by_tokens = sorted(self._hits, key=lambda each: -self._hits[each].num_prompt_tokens)
        return by_tokens[:count]
