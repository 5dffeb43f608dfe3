"""Panels of dashboards, and how their queries are written. Knows nothing of Grafana's format.

`$replicas` stands for a selector of the replicas chosen on the dashboard.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stat", "timeseries", "heatmap", "state-timeline"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """One expression, and what its series are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One picture. `width` is of Grafana's 24 columns; `is_stacked` piles its series up."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    unit: str = "short"
    width: int = 12
    is_stacked: bool = False


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A page of panels in rows; `has_one_replica` lets the reader choose one instead of several."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    has_one_replica: bool


def rate(metric: str) -> str:
    """A counter's growth a second."""
    return f"rate({metric}{{$replicas}}[$__rate_interval])"


def stat(title: str, expression: str, description: str, *, unit: str = "short") -> Panel:
    """One number."""
    query = Query(expression=expression)
    return Panel(
        title=title, description=description, queries=(query,), kind="stat", unit=unit, width=4
    )


def quantiles(title: str, metric: str, description: str) -> Panel:
    """A histogram's median, 95 % and 99 % over time."""
    growth = f"sum by (le) ({rate(metric + '_bucket')})"
    return Panel(
        title=title,
        description=description,
        unit="s",
        queries=tuple(
            Query(expression=f"histogram_quantile({share}, {growth})", legend=name)
            for share, name in ((0.5, "median"), (0.95, "95 %"), (0.99, "99 %"))
        ),
    )


def heatmap(title: str, metric: str, description: str) -> Panel:
    """A histogram's buckets over time."""
    growth = f"sum by (le) ({rate(metric + '_bucket')})"
    query = Query(expression=growth, legend="{{le}}")
    return Panel(title=title, description=description, queries=(query,), kind="heatmap", unit="s")


def by(label: str, title: str, expression: str, description: str, *, unit: str = "short") -> Panel:
    """One line for each value of a label."""
    query = Query(expression=f"sum by ({label}) ({expression})", legend=f"{{{{{label}}}}}")
    return Panel(title=title, description=description, queries=(query,), unit=unit)
