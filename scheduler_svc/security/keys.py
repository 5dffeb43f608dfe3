"""Finds who calls by the key that came with the call; follows the file of keys. Knows no method.

A key is looked up by a keyed hash of its hash, so that neither finding nor missing one takes a time
that tells anything of the keys there are.
"""

import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scheduler_svc.config import InvalidConfig
from scheduler_svc.frontend.errors import Unauthenticated
from scheduler_svc.security.key_records import Caller, InvalidRecords, KeyRecord, parse_records
from scheduler_svc.security.watched import FilesUnreadable, Signature, signature_of

_LOG = logging.getLogger(__name__)
_LOOK_INTERVAL_S = 1.0
_SCHEME = "bearer "

MetadataPairs = Iterable[tuple[str, str | bytes]]


class KeyRing:
    """The keys of one file, looked at anew at most once a second."""

    def __init__(
        self, *, flag: str, path: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._flag = flag
        self._path = path
        self._clock = clock
        self._mark = secrets.token_bytes(32)
        self._records: dict[bytes, KeyRecord] = {}
        self.tenants: tuple[str, ...] = ()
        """Each once, in the order of the file."""
        self._seen: Signature | None = None
        self._looked_at = 0.0
        self._told = ""

    def load(self) -> None:
        """Reads the file. Raises InvalidConfig naming the flag, the file and the rule."""
        try:
            self._looked_at = self._clock()
            signature = signature_of((self._path,))
            text = Path(self._path).read_text(encoding="utf-8")
            records = parse_records(text)
        except FilesUnreadable as error:
            raise InvalidConfig(f"{self._flag} {error}") from error
        except OSError as error:
            raise InvalidConfig(f"{self._flag} {self._path}: {error.strerror}") from error
        except UnicodeDecodeError:  # its text would hold the file's
            raise InvalidConfig(f"{self._flag} {self._path}: must be UTF-8 text") from None
        except InvalidRecords as error:
            raise InvalidConfig(f"{self._flag} {self._path}: {error}") from error
        self._records = {self._marked(record.sha256): record for record in records}
        self.tenants = tuple(dict.fromkeys(record.caller.tenant for record in records))
        self._seen = signature

    def caller(self, metadata: MetadataPairs) -> Caller:
        """Who calls. Raises Unauthenticated."""
        key = _bearer_key(metadata)
        if key is None:
            raise Unauthenticated(
                "no API key came with the call; send it as the metadata authorization: Bearer KEY",
                reason="API_KEY_MISSING",
            )
        self._follow_file()
        sha256 = hashlib.sha256(key).digest()
        record = self._records.get(self._marked(sha256))
        if record is None or not hmac.compare_digest(record.sha256, sha256):
            raise Unauthenticated("the API key is not known here", reason="API_KEY_INVALID")
        return record.caller

    def _marked(self, sha256: bytes) -> bytes:
        return hmac.digest(self._mark, sha256, "sha256")

    def _follow_file(self) -> None:
        if self._clock() - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = self._clock()
        try:
            if signature_of((self._path,)) == self._seen:
                return
            self.load()
        except (FilesUnreadable, InvalidConfig) as error:
            if str(error) != self._told:
                self._told = str(error)
                _LOG.error("the keys in use stay: %s", error)
            return
        self._told = ""
        _LOG.info("%s %s: read anew, %d keys", self._flag, self._path, len(self._records))


def key_ring(*, flag: str, path: str) -> KeyRing | None:
    """The keys of a file, read; None without a file. Raises InvalidConfig."""
    if not path:
        return None
    ring = KeyRing(flag=flag, path=path)
    ring.load()
    return ring


def _bearer_key(metadata: MetadataPairs) -> bytes | None:
    for name, value in metadata:
        if name == "authorization":
            text = value if isinstance(value, str) else value.decode("latin-1")
            has_scheme = text[: len(_SCHEME)].lower() == _SCHEME
            return text[len(_SCHEME) :].strip().encode() if has_scheme else None
    return None
