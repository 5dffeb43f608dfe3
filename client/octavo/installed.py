"""Which version of Octavo runs. Knows nothing else."""

from importlib.metadata import PackageNotFoundError, version

_UNKNOWN = "unknown"


def installed_version() -> str:
    """The distribution's version; "unknown" where the code runs from a checkout alone."""
    try:
        return version("octavo")
    except PackageNotFoundError:
        return _UNKNOWN
