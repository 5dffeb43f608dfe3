"""A real Prometheus scrapes a real replica and judges it by the alerts."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.calls import generation, stream_all
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.free_ports import free_ports
from tests.operations.conftest import ALERTS, promtool
from tools import fetch_prometheus

LIMIT_S = 30.0
NUM_REQUESTS, NUM_TOKENS = 4, 12


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus; answers of its API."""

    address: str

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        url = f"http://{self.address}/api/v1/{path}{query}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return dict(json.load(answer)["data"])

    def values(self, expression: str) -> list[float]:
        """What an expression is now, one value for each series."""
        result = self.get("query", query=expression)["result"]
        return [float(series["value"][1]) for series in result]


@contextmanager
def running_prometheus(target: str, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with our alerts, scraping one target as the job octavo."""
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "octavo", "static_configs": [{"targets": [target]}]}],
    }
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_ports(1)[0]}"
    log = (folder / "prometheus.log").open("wb")
    process = subprocess.Popen(
        [
            str(fetch_prometheus.program("prometheus")),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A replica that has answered some requests."""
    folder = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(folder, family="qwen3")
    with running_replica(folder, hash_worker=[]) as started:
        wanted = [generation([1, 2, 3 + i], max_tokens=NUM_TOKENS) for i in range(NUM_REQUESTS)]
        stream_all(started.target, wanted)
        yield started


@pytest.fixture(scope="module")
def prometheus(replica: Replica, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen all of the requests, and judged every rule."""
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(replica.addresses.metrics, folder) as started:
        wait_until(
            lambda: has_seen_all(started),
            limit_s=LIMIT_S,
            otherwise=(folder / "prometheus.log").read_text,
        )
        yield started


def has_seen_all(prometheus: Prometheus) -> bool:
    try:
        tokens = prometheus.values("octavo_generation_tokens_total")
        ended = prometheus.values("octavo_e2e_request_latency_seconds_count")
        rules = prometheus.get("rules")["groups"]
    except (urllib.error.URLError, ConnectionError):
        return False
    is_judged = all(rule["health"] != "unknown" for group in rules for rule in group["rules"])
    return is_judged and tokens == [NUM_REQUESTS * NUM_TOKENS] and ended == [NUM_REQUESTS]


def test_what_a_replica_exposes_passes_promtool(replica: Replica) -> None:
    status, text = replica.get("/metrics")
    assert status == 200
    done = promtool("check", "metrics", stdin=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_scrape_is_complete_and_without_error(prometheus: Prometheus) -> None:
    [target] = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.values('up{job="octavo"}') == [1]
    assert prometheus.values("octavo_worker_up") == [1]


def test_counts_agree_with_what_clients_got(prometheus: Prometheus) -> None:
    """Scenario MET-02: first tokens are counted once a request."""
    assert prometheus.values("octavo_time_to_first_token_seconds_count") == [NUM_REQUESTS]
    assert prometheus.values("octavo_prompt_tokens_total") == [3 * NUM_REQUESTS]
    ends = 'octavo_request_success_total{finished_reason="length"}'
    assert prometheus.values(ends) == [NUM_REQUESTS]


def test_every_alert_can_be_judged_and_none_fires(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
        assert rule["state"] == "inactive", rule["name"]


def test_the_objectives_bucket_is_found_under_the_name_it_has(prometheus: Prometheus) -> None:
    expression = (
        'sum without (le) (octavo_time_to_first_token_seconds_bucket{le=~"2|2.0"})'
        " / octavo_time_to_first_token_seconds_count"
    )
    [share] = prometheus.values(expression)
    assert 0 <= share <= 1
