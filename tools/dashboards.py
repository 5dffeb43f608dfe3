"""Writes dashboards in Grafana's format. Knows nothing of what they show.

Grid positions and ids follow from the order of the panels, so that the files are the same
everywhere.
"""

import json
from collections.abc import Iterator
from typing import Any

from tools.dashboard_panels import Dashboard, Panel

Json = dict[str, Any]

_COLUMNS = 24
_HEIGHTS = {"stat": 4, "timeseries": 8, "heatmap": 8, "state-timeline": 8}
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_REPLICAS = 'instance=~"$instance"'


def grafana_json(dashboard: Dashboard) -> str:
    """The dashboard as a file that Grafana imports or provisions."""
    content = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["octavo"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource_choice(), _replica_choice(dashboard)]},
        "links": [
            {
                "type": "dashboards",
                "title": "Octavo",
                "tags": ["octavo"],
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": list(_panels(dashboard)),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _datasource_choice() -> Json:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
    }


def _replica_choice(dashboard: Dashboard) -> Json:
    choice: Json = {
        "name": "instance",
        "label": "Replica" if dashboard.has_one_replica else "Replicas",
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": "label_values(octavo_num_requests_running, instance)", "refId": "A"},
        "refresh": 2,
        "sort": 1,
        "multi": not dashboard.has_one_replica,
        "includeAll": not dashboard.has_one_replica,
    }
    if not dashboard.has_one_replica:
        choice["current"] = {"text": ["All"], "value": ["$__all"]}
    return choice


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    panel_id, top = 1, 0
    for title, panels in dashboard.rows:
        yield {
            "id": panel_id,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
            "panels": [],
        }
        panel_id, top, left = panel_id + 1, top + 1, 0
        height = 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left = top + height, 0
            height = _HEIGHTS[panel.kind]
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield _panel(panel, panel_id=panel_id, place=place)
            panel_id, left = panel_id + 1, left + panel.width
        top += height


def _panel(panel: Panel, *, panel_id: int, place: Json) -> Json:
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "targets": list(_targets(panel)),
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _targets(panel: Panel) -> Iterator[Json]:
    for index, query in enumerate(panel.queries):
        yield {
            "refId": chr(ord("A") + index),
            "datasource": _DATASOURCE,
            "expr": query.expression.replace("$replicas", _REPLICAS),
            "legendFormat": query.legend or "__auto",
            "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            "instant": panel.kind == "stat",
            "range": panel.kind != "stat",
        }


def _field_defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 60 if panel.is_stacked else 8,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.is_stacked else "none"},
        }
    if panel.kind == "state-timeline":
        states = {"0": {"text": "down", "color": "red"}, "1": {"text": "up", "color": "green"}}
        defaults["mappings"] = [{"type": "value", "options": states}]
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    if panel.kind == "heatmap":
        return {"calculate": False, "yAxis": {"unit": panel.unit}, "color": {"scheme": "Oranges"}}
    if panel.kind == "state-timeline":
        return {"showValue": "never"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
