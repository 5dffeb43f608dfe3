"""Keyword arguments of an Engine as flags of the service. Knows no setting but those it keeps."""

from __future__ import annotations

from collections.abc import Mapping

# The engine's own business: one private service, reached by nobody else.
_KEPT = frozenset(
    {"model", "served_model_name", "unix_socket", "run_dir", "host", "port", "workers"}
    | {"admin_host", "admin_port", "metrics_host", "metrics_port", "drain_limit"}
)


def service_flags(settings: Mapping[str, str | float | bool]) -> list[str]:
    """`max_num_seqs=8` as `--max-num-seqs 8`, `enforce_eager=True` as `--enforce-eager`.

    Raises TypeError for settings that the engine keeps to itself; the service judges the others.
    """
    flags: list[str] = []
    for name, value in settings.items():
        if name in _KEPT:
            raise TypeError(f"Engine() sets {name} itself: use `octavo serve` to choose it")
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not False:
            flags += [flag, str(value)]
    return flags
