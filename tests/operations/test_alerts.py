"""The alerts: each fires when it should, keeps quiet when it should, and has a runbook entry."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operations.conftest import ALERTS, ROOT, promtool
from tests.operations.expressions import borders_of, exposed_series, matchers_in, metrics_in

CASES = Path(__file__).with_name("alerts_test.yaml")
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
}
TESTS: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]


def entries_of(runbook: str) -> dict[str, str]:
    parts = re.split(r"^## (Octavo\w+)$", runbook, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


RUNBOOK = entries_of((ROOT / "docs/runbook.md").read_text())


def test_replicas_in_trouble_are_reported_and_others_are_not() -> None:
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_is_tried_on_a_replica_that_it_must_not_report(alert: str) -> None:
    cases = [test for test in TESTS if test["name"].startswith(alert)]
    series = " ".join(s["series"] for test in cases for s in test["input_series"])
    healthy = set(re.findall(r'instance="([^"]+)"', series))
    checks = [check for test in cases for check in test["alert_rule_test"]]
    assert {check["alertname"] for check in checks} == {alert}
    expected = [e["exp_labels"]["instance"] for check in checks for e in check["exp_alerts"]]
    assert expected
    assert healthy - set(expected)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_reads_series_that_exist(alert: str) -> None:
    expression = RULES[alert]["expr"]
    assert metrics_in(expression) <= exposed_series()
    for series, label, value in matchers_in(expression):
        if label == "le":
            borders = {float(border) for border in value.split("|")}
            assert borders <= borders_of(series), f"{series} has no bucket up to {value}"


def test_thresholds_of_the_queue_lie_on_a_border() -> None:
    """Between borders a quantile is a guess."""
    assert 10.0 in borders_of("octavo_request_queue_time_seconds_bucket")


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_says_how_bad_it_is_and_what_happened(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert "$labels.instance" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")


def test_the_runbook_has_one_entry_for_each_alert() -> None:
    assert list(RUNBOOK) == list(RULES)


@pytest.mark.parametrize("alert", RULES)
def test_an_entry_says_what_it_means_and_what_to_do(alert: str) -> None:
    for heading in ("**What it means.**", "**Find out.**", "**Mend.**"):
        assert heading in RUNBOOK[alert], heading
