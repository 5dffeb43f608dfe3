"""The worker's settings: the same flags as the service's, checked once."""

import dataclasses

import pytest

from scheduler_svc.config import ServiceConfig
from scheduler_svc.config import flag_name as service_flag_name
from worker_svc.config import InvalidConfig, WorkerConfig, flag_name, parse_flags

BASE = ["--run-dir", "/run/octavo"]
# where a worker alone cannot know the service's default
OWN_DEFAULTS = {"model"}


def test_every_setting_has_the_name_the_default_and_the_rules_of_the_service() -> None:
    service = {setting.name: setting for setting in dataclasses.fields(ServiceConfig)}
    for setting in dataclasses.fields(WorkerConfig):
        twin = service[setting.name]
        assert flag_name(setting) == service_flag_name(twin)
        assert setting.default == twin.default or setting.name in OWN_DEFAULTS
        for rule in ("choices", "at_least", "at_most"):
            assert setting.metadata[rule] == twin.metadata[rule], setting.name


def test_settings_survive_the_way_through_a_command_line() -> None:
    given = [*BASE, "--model=-odd name", "--enforce-eager", "--dtype=float16", "--max-num-seqs=3"]
    config = parse_flags(given, program="x")
    assert (config.model, config.enforce_eager, config.max_num_seqs) == ("-odd name", True, 3)
    assert parse_flags(config.to_flags(), program="x") == config


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--run-dir is missing"),
        (["--run-dir", "/" + "x" * 200], "--run-dir is too long"),
        ([*BASE, "--max-num-seqs", "0"], "--max-num-seqs must be at least 1, got 0"),
        ([*BASE, "--block-size", "12"], "--block-size must be a power of two, got 12"),
        ([*BASE, "--block-size", "2048"], "--block-size must be at most 1024, got 2048"),
        ([*BASE, "--tensor-parallel-size", "0"], "--tensor-parallel-size must be at least 1"),
        ([*BASE, "--gpu-memory-utilization", "nan"], "--gpu-memory-utilization must be at least"),
        ([*BASE, "--gpu-memory-utilization", "1.5"], "must be at most 1, got 1.5"),
        ([*BASE, "--num-kv-blocks", "1"], "--num-kv-blocks must be 0 or at least 2"),
        ([*BASE, "--num-kv-blocks", "9", "--kv-cache-bytes", "9"], "exclude each other"),
        ([*BASE, "--max-model-len", "-1"], "--max-model-len must be at least 0, got -1"),
    ],
)
def test_a_broken_rule_names_the_flag_and_the_rule(flags: list[str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse_flags(flags, program="x")


def test_a_choice_that_does_not_exist_is_refused_whoever_made_the_value() -> None:
    with pytest.raises(SystemExit):
        parse_flags([*BASE, "--device", "tpu"], program="x")
