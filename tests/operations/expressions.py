"""Names in PromQL expressions, and the names that the service exposes. Knows no meaning."""

import re

from scheduler_svc.metrics.catalog import CATALOG
from scheduler_svc.metrics.exporter import PREFIX


def metrics_in(expression: str) -> set[str]:
    """The service's metrics that an expression reads."""
    return set(re.findall(rf"\b{PREFIX}\w+", expression))


def exposed_series() -> set[str]:
    """Every name that a series of the service can have."""
    endings = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return {PREFIX + name + end for name, spec in CATALOG.items() for end in endings[spec.kind]}


def labels_of(series: str) -> set[str]:
    """The labels that the service gives to a series."""
    bare = series.removeprefix(PREFIX)
    is_bucket = bare.endswith("_bucket") and bare not in CATALOG
    name = bare if bare in CATALOG else re.sub(r"_(total|bucket|sum|count)$", "", bare)
    return {*CATALOG[name].labels, *(["le"] if is_bucket else [])}


def borders_of(series: str) -> set[float]:
    """The borders of a histogram's buckets."""
    return set(CATALOG[series.removeprefix(PREFIX).removesuffix("_bucket")].buckets)


def matchers_in(expression: str) -> list[tuple[str, str, str]]:
    """Every (series, label, value) that an expression matches, of the service's series."""
    found = []
    for series, selector in re.findall(rf"\b({PREFIX}\w+)\{{([^}}]*)\}}", expression):
        pairs = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', selector)
        found += [(series, label, value) for label, value in pairs]
    return found
