"""Where a replica listens, once it does; kept in its run folder. Binds nothing."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

_FILE = "ports.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """`host:port` each; `inference` may be `unix:/path`. Written once the three are bound."""

    inference: str
    admin: str
    metrics: str


def write_addresses(addresses: Addresses, run_dir: Path) -> None:
    """Leaves the addresses in the run folder, whole or not at all."""
    unfinished = run_dir / (_FILE + ".new")
    unfinished.write_text(json.dumps(dataclasses.asdict(addresses)), encoding="utf-8")
    unfinished.rename(run_dir / _FILE)


def read_addresses(run_dir: Path) -> Addresses:
    """The addresses of the replica that owns the folder; raises FileNotFoundError before."""
    return Addresses(**json.loads((run_dir / _FILE).read_text(encoding="utf-8")))
