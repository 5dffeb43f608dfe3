"""Whether this environment can run a service, asked before one is started."""

from __future__ import annotations

from importlib.util import find_spec

from octavo.errors import MissingExtra

# one package for each need that an extra brings: enough to tell whether it was asked for
_SCHEDULER = ("zmq", "tokenizers", "jinja2", "grpc_health", "grpc_reflection", "prometheus_client")
_WORKER = ("torch", "safetensors")


def require_service_packages(purpose: str, *, has_local_workers: bool) -> None:
    """Raises MissingExtra, with the command that mends it."""
    extras: dict[str, tuple[str, ...]] = {"scheduler": _SCHEDULER}
    if has_local_workers:
        extras["worker"] = _WORKER
    missing = {extra: _missing(packages) for extra, packages in extras.items()}
    lacking = [extra for extra, packages in missing.items() if packages]
    if lacking:
        names = ", ".join(name for packages in missing.values() for name in packages)
        extra = lacking[0] if len(lacking) == 1 else "all"
        raise MissingExtra(
            f"{purpose} starts a service, and this environment lacks {names}:"
            f" run `pip install 'octavo[{extra}]'`"
        )


def _missing(packages: tuple[str, ...]) -> list[str]:
    return [name for name in packages if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ImportError:
        return False
