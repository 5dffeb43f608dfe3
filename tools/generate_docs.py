"""Writes the files that are made from code, or with --check says which are out of date.

Knows where the tables are; knows nothing of what the settings mean.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "client")]

from scheduler_svc.config import ServiceConfig, flag_name  # noqa: E402 - needs the path above
from scheduler_svc.metrics.catalog import CATALOG, MetricSpec  # noqa: E402
from scheduler_svc.metrics.exporter import PREFIX  # noqa: E402
from tools.api_page import api_page  # noqa: E402
from tools.chart_values import with_values_table  # noqa: E402
from tools.dashboard_pages import OVERVIEW, REPLICA  # noqa: E402
from tools.dashboards import grafana_json  # noqa: E402

CONFIGURATION_HEAD = """# Configuration

Every setting of `octavo serve` (the same as `python -m scheduler_svc`), with its default. Made from
`scheduler_svc/config.py` by `make docs`. `python -m worker_svc` takes the settings of the groups
workers, memory and scheduling that concern a worker, by the same names. Durations are in seconds
unless the name says otherwise.
"""


def configuration_page() -> str:
    """The table of all settings, by group."""
    parts = [CONFIGURATION_HEAD]
    group = ""
    for setting in dataclasses.fields(ServiceConfig):
        if setting.metadata["group"] != group:
            group = setting.metadata["group"]
            parts.append(f"\n## {group.capitalize()}\n\n| flag | default | meaning |\n")
            parts.append("|---|---|---|\n")
        is_empty = setting.default == "" or setting.default is False
        default = "" if is_empty else f"`{setting.default}`"
        parts.append(
            f"| `{flag_name(setting)}` | {default} | {setting.metadata['help']}{_rule(setting)} |\n"
        )
    return "".join(parts)


def _rule(setting: "dataclasses.Field[object]") -> str:
    low, high = setting.metadata["at_least"], setting.metadata["at_most"]
    if setting.metadata["choices"]:
        return f" ({', '.join(setting.metadata['choices'])})"
    if low is not None and high is not None:
        return f" ({low:g} to {high:g})"
    return f" (at least {low:g})" if low is not None else ""


METRICS_HEAD = """# Metrics

Everything on `/metrics` (port 9464), one endpoint for all processes of a replica. Made from
`scheduler_svc/metrics/catalog.py` by `make docs`. A histogram has the series `_bucket`, `_sum` and
`_count`. A counter never falls while the replica lives, whichever of its processes restart. A
series appears when its first value does: alert on what may be absent with care. Label values come
from fixed sets, and tenants' from the file of API keys, never from clients. `make test-operations`
runs `promtool check metrics` over the whole catalog, and lets a real Prometheus scrape a real
replica.

Alerts on these metrics are in [the runbook](runbook.md), dashboards in
[helm/octavo/files](../helm/octavo/files).
"""

METRICS_FOOT = f"""
## For routers and autoscalers

The endpoint picker of the Gateway API Inference Extension reads these of each pod; their names go
into an entry of `engineConfigs` of its `core-metrics-extractor` plugin:

| what it wants | key | metric |
|---|---|---|
| total queued requests | `queuedRequestsSpec` | `{PREFIX}num_requests_waiting` |
| total running requests | `runningRequestsSpec` | `{PREFIX}num_requests_running` |
| KV cache utilization | `kvUsageSpec` | `{PREFIX}kv_cache_usage_perc` |
| block size, number of blocks | `cacheInfoSpec` | `{PREFIX}cache_config_info` |
| LoRA adapters | `loraSpec` | none: leave it empty |

Autoscale on `{PREFIX}num_tokens_waiting`: work that is there and not begun. The chart's
`autoscaling` does.
"""


def metrics_page() -> str:
    """The table of all metrics, by kind."""
    parts = [METRICS_HEAD]
    for kind in ("gauge", "counter", "histogram"):
        parts.append(f"\n## {kind.capitalize()}s\n\n| name | labels | meaning |\n|---|---|---|\n")
        parts += [_metric_row(n, spec) for n, spec in CATALOG.items() if spec.kind == kind]
    return "".join([*parts, METRICS_FOOT])


def _metric_row(name: str, spec: MetricSpec) -> str:
    full = PREFIX + name + ("_total" if spec.kind == "counter" else "")
    labels = ", ".join(f"`{label}`" for label in spec.labels)
    unit = " s" if name.endswith("_seconds") else ""
    buckets = "; up to " + ", ".join(f"{b:g}" for b in spec.buckets) + unit if spec.buckets else ""
    return f"| `{full}` | {labels} | {spec.help}{buckets} |\n"


def chart_page() -> str:
    """The chart's README with its table of values made anew."""
    chart = ROOT / "helm/octavo"
    page = (chart / "README.md").read_text(encoding="utf-8")
    return with_values_table(page, chart / "values.yaml")


PAGES: dict[str, Callable[[], str]] = {
    "docs/api.md": api_page,
    "docs/configuration.md": configuration_page,
    "docs/metrics.md": metrics_page,
    "helm/octavo/README.md": chart_page,
    "helm/octavo/files/dashboards/overview.json": lambda: grafana_json(OVERVIEW),
    "helm/octavo/files/dashboards/replica.json": lambda: grafana_json(REPLICA),
}


def main() -> int:
    """Writes or checks every page; 1 when a check found a stale one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    is_check = parser.parse_args().check
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not is_check:
            path.write_text(text, encoding="utf-8")
    if is_check and stale:
        sys.stderr.write(f"out of date, run `make docs`: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
