"""The command line: tables, files, and one clear line for bad input."""

import json
from pathlib import Path

import pytest

from bench import simulate
from bench.simulator.options import BadOption, policy_of
from bench.simulator.table import Row, as_text

SHORT = ["run", "--seconds", "3", "--rate", "4"]


def test_a_run_prints_its_table_and_writes_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main([*SHORT, "--json", str(tmp_path / "numbers.json")]) == 0
    (row,) = json.loads((tmp_path / "numbers.json").read_text())
    assert row["run"] == "core"
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["itl_p50_ms"]) == pytest.approx(row["itl_p50_ms"], abs=1e-3)
    assert int(printed["num_requests"]) == row["num_requests"] > 0


def test_a_saved_trace_plays_again_as_it_was(tmp_path: Path) -> None:
    trace, first, again = (tmp_path / name for name in ("trace.jsonl", "1.json", "2.json"))
    assert simulate.main([*SHORT, "--save-trace", str(trace), "--json", str(first)]) == 0
    assert simulate.main([*SHORT, "--trace", str(trace), "--json", str(again)]) == 0
    rows = [json.loads(path.read_text())[0] for path in (first, again)]
    for row in rows:
        del row["took_s"]
    assert rows[0] == rows[1]


def test_a_batch_is_measured_until_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    assert simulate.main(["run", "--trace", "batch", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())
    assert row["output_tokens_per_s"] == pytest.approx(9_900, rel=0.1)


def test_a_row_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    varied = "--vary=target_token_time_s=0.1,0.008"
    assert simulate.main(["long-prompt", varied, "--prompt-tokens", "4000"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["run"] == ["target_token_time_s=0.1", "target_token_time_s=0.008"]
    assert float(lines["p99_ratio"][0]) > float(lines["p99_ratio"][1])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--trace", "nowhere"], "--trace must be a name or a file, 'nowhere' is neither"),
        (["--policy", "colour=3"], "'colour' is none of max_steps_in_flight, "),
        (["--policy", "ageing_s=soon"], "ageing_s must be a number, got 'soon'"),
        (["--replicas", "0"], "--replicas must be at least 1"),
        (["--seed", "9999"], "--seed must be from 0 to 4095"),
        (["--rate", "0"], "--rate and --seconds must be above 0"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate.main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"simulate: {complaint}")
    assert captured.err.count("\n") == 1


def test_policy_fields_keep_their_types() -> None:
    policy = policy_of(["max_times_passed=7", "ageing_s=2.5", "use_prefix_cache=0"])
    assert (policy.max_times_passed, policy.ageing_s, policy.use_prefix_cache) == (7, 2.5, False)
    with pytest.raises(BadOption, match="must be a number"):
        policy_of(["ageing_s"])


def test_a_table_has_a_line_for_each_name() -> None:
    rows: list[Row] = [
        {"run": "a", "share": 0.5, "count": 3},
        {"run": "b", "share": 120.25, "count": 12},
    ]
    assert as_text(rows) == "run        a      b\nshare  0.500  120.2\ncount      3     12"
