"""Names of tenants as label values: so many at most, the same ones in every frontend.

A label value is a series for ever, and an operator may have thousands of tenants. Which ones keep
their name is decided by the file of keys alone, so that frontends agree and series add up.
"""

from scheduler_svc.security.key_records import DEFAULT_TENANT
from scheduler_svc.security.keys import KeyRing

MAX_LABELS = 100
OTHER = "(other)"
"""No tenant can have this name."""


class TenantLabels:
    """Follows the keys."""

    def __init__(self, keys: KeyRing | None) -> None:
        self._keys = keys
        self._tenants: tuple[str, ...] = ()
        self._named: frozenset[str] = frozenset({DEFAULT_TENANT})

    def of(self, tenant: str) -> str:
        """The tenant's own name, or OTHER."""
        if self._keys is not None and self._tenants is not self._keys.tenants:
            self._tenants = self._keys.tenants  # they were read anew
            self._named = frozenset(self._tenants[:MAX_LABELS])
        return tenant if tenant in self._named else OTHER
