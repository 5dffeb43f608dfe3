"""Settings: every rule is checked and named, and survives the way through the run folder."""

import dataclasses
from pathlib import Path

import pytest

from scheduler_svc.config import (
    InvalidConfig,
    ServiceConfig,
    parse_flags,
    read_config,
    write_config,
)


def _parse(*flags: str) -> ServiceConfig:
    return parse_flags(flags, program="octavo serve")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--port", "70000"), "--port must be at most 65535"),
        (("--block-size", "24"), "--block-size must be a power of two"),
        (("--num-kv-blocks", "5", "--kv-cache-bytes", "5"), "exclude each other"),
        (("--gpu-memory-utilization", "nan"), "--gpu-memory-utilization must be at least"),
        (("--max-steps-in-flight", "3"), "--max-steps-in-flight must be at most 2"),
        (("--unix-socket", "/x", "--frontends", "2"), "--frontends must be 1"),
        (("--drain-limit", "-1"), "--drain-limit must be at least 0"),
        (("--tls-cert", "a.pem"), "--tls-cert and --tls-key belong together"),
        (("--admin-tls-key", "a.pem"), "--admin-tls-cert and --admin-tls-key belong together"),
        (("--tls-client-ca", "a.pem"), "--tls-client-ca needs --tls-cert and --tls-key"),
        (("--tls-cert", "a", "--tls-key", "b", "--unix-socket", "/x"), "--tls-cert needs a port"),
    ],
)
def test_a_broken_rule_is_named_with_its_flag(flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named):
        _parse(*flags)


def test_settings_survive_the_run_folder_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    config = _parse("--port", "0", "--no-prefix-cache", "--drain-limit", "2.5")
    write_config(config, tmp_path)
    assert read_config(tmp_path) == config
    assert (tmp_path / "config.json").stat().st_mode & 0o777 == 0o600


def test_a_foreign_settings_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"unknown": 1}', encoding="utf-8")
    with pytest.raises(InvalidConfig, match="not a settings file"):
        read_config(tmp_path)
    with pytest.raises(InvalidConfig, match="cannot read"):
        read_config(tmp_path / "missing")


def test_every_setting_has_a_help_text_and_a_default_within_its_rules() -> None:
    for setting in dataclasses.fields(ServiceConfig):
        assert setting.metadata["help"], setting.name
    assert _parse() == ServiceConfig()
