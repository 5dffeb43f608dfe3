"""A worker's settings: one frozen value, read from flags once. Knows nothing of who uses a setting.

Names, defaults and rules are those of the service, which passes these flags through.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST_SOCKET_PATH = 107
"""Bytes that Linux allows in the path of a unix socket."""


class InvalidConfig(Exception):
    """A setting breaks its rule; the text names the flag and the rule. No restart can mend it."""


def _setting(
    default: T,
    help_text: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> T:
    rules = {"help": help_text, "choices": choices, "at_least": at_least, "at_most": at_most}
    made: T = field(default=default, metadata=rules)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All settings of one rank group."""

    run_dir: str = _setting("", "private folder of sockets, shared with the core")
    model: str = _setting("", "folder of the model")

    tensor_parallel_size: int = _setting(1, "ranks, one GPU each", at_least=1, at_most=64)
    device: str = _setting("auto", "where tensors live", choices=("auto", "cpu", "cuda"))
    dtype: str = _setting(
        "auto",
        "type of weights and KV cache; auto: the checkpoint's, but float32 on a CPU that lacks "
        "bfloat16 instructions",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    load_format: str = _setting(
        "auto",
        "auto reads the checkpoint; random makes weights of its shapes, for benchmarks",
        choices=("auto", "random"),
    )
    attention_backend: str = _setting(
        "auto", "attention implementation", choices=("auto", "torch", "fa3", "fa2", "triton")
    )
    all_reduce: str = _setting(
        "auto",
        "how GPUs sum over ranks; auto: small sums in memory that they share, large ones by NCCL",
        choices=("auto", "nccl"),
    )
    enforce_eager: bool = _setting(default=False, help_text="never use CUDA graphs")
    cpu_threads: int = _setting(
        0, "threads of each CPU rank; 0: physical cores over ranks", at_least=0
    )

    max_model_len: int = _setting(
        0,
        "most tokens, prompt and output together, of one sequence; 0: the model's own limit",
        at_least=0,
    )
    block_size: int = _setting(16, "tokens in a KV block", at_least=1, at_most=1024)
    num_kv_blocks: int = _setting(
        0, "KV blocks, exactly, the trash block included; 0: as many as fit", at_least=0
    )
    kv_cache_bytes: int = _setting(
        0,
        "bytes of KV cache for each rank, exactly; 0: measured on a GPU, 1 GiB on a CPU",
        at_least=0,
    )
    gpu_memory_utilization: float = _setting(
        0.9, "share of each GPU's memory this service may use in all", at_least=0.01, at_most=1.0
    )

    max_num_batched_tokens: int = _setting(2048, "most tokens computed in one step", at_least=1)
    max_num_seqs: int = _setting(
        256, "most sequences in the running batch", at_least=1, at_most=65536
    )

    log_level: str = _setting(
        "info", "least severe line logged", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting("text", "form of log lines", choices=("text", "json"))

    def to_flags(self) -> list[str]:
        """The command line that `parse_flags` reads back to this value."""
        flags: list[str] = []
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if value is True:
                flags.append(flag_name(setting))
            elif value is not False:
                # one word, so that a value that begins with a dash stays a value
                flags.append(f"{flag_name(setting)}={value}")
        return flags


def flag_name(setting: dataclasses.Field[Any]) -> str:
    """The command-line flag of a setting."""
    return "--" + setting.name.replace("_", "-")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per setting to a parser."""
    for setting in dataclasses.fields(WorkerConfig):
        rules, default = setting.metadata, setting.default
        if isinstance(default, bool):
            parser.add_argument(flag_name(setting), action="store_true", help=rules["help"])
            continue
        parser.add_argument(
            flag_name(setting),
            type=type(default),
            default=default,
            choices=rules["choices"] or None,
            metavar=None if rules["choices"] else type(default).__name__.upper(),
            help=f"{rules['help']} (default: {default!r})".replace("%", "%%"),
        )


def config_of(arguments: argparse.Namespace) -> WorkerConfig:
    """The settings among parsed arguments; raises InvalidConfig when one breaks its rule."""
    names = [setting.name for setting in dataclasses.fields(WorkerConfig)]
    return checked(WorkerConfig(**{name: getattr(arguments, name) for name in names}))


def parse_flags(arguments: Sequence[str], *, program: str) -> WorkerConfig:
    """Settings from a command line; raises InvalidConfig; exits on unknown flags."""
    parser = argparse.ArgumentParser(prog=program, description="Octavo's worker: computes steps.")
    add_flags(parser)
    return config_of(parser.parse_args(list(arguments)))


def checked(config: WorkerConfig) -> WorkerConfig:
    """The same settings, once every rule holds; raises InvalidConfig naming the flag otherwise."""
    for setting in dataclasses.fields(WorkerConfig):
        _check_range(setting, getattr(config, setting.name))
    if not config.run_dir:
        raise InvalidConfig(
            "--run-dir is missing: name the folder in which the core binds its sockets"
        )
    longest = Path(config.run_dir).absolute() / "workers.sock"
    if len(str(longest).encode()) > LONGEST_SOCKET_PATH:
        raise InvalidConfig(
            f"--run-dir is too long: {longest} must have at most {LONGEST_SOCKET_PATH} bytes"
        )
    if config.num_kv_blocks and config.kv_cache_bytes:
        raise InvalidConfig("--num-kv-blocks and --kv-cache-bytes exclude each other: set one")
    if config.num_kv_blocks == 1:
        raise InvalidConfig("--num-kv-blocks must be 0 or at least 2: block 0 holds no sequence")
    if config.block_size & (config.block_size - 1):
        raise InvalidConfig(f"--block-size must be a power of two, got {config.block_size}")
    return config


def _check_range(setting: dataclasses.Field[Any], value: Any) -> None:
    rules, flag = setting.metadata, flag_name(setting)
    if rules["choices"] and value not in rules["choices"]:
        raise InvalidConfig(f"{flag} must be one of {', '.join(rules['choices'])}, got {value!r}")
    # written so that NaN fails too
    if rules["at_least"] is not None and not value >= rules["at_least"]:
        raise InvalidConfig(f"{flag} must be at least {rules['at_least']:g}, got {value}")
    if rules["at_most"] is not None and not value <= rules["at_most"]:
        raise InvalidConfig(f"{flag} must be at most {rules['at_most']:g}, got {value}")
