"""The command lines of a replica's processes. Starts nothing."""

import sys
from pathlib import Path

from scheduler_svc.config import ServiceConfig

# settings that a worker reads, by the same flag
_WORKER_SETTINGS = (
    "model",
    "tensor_parallel_size",
    "device",
    "dtype",
    "load_format",
    "attention_backend",
    "all_reduce",
    "enforce_eager",
    "cpu_threads",
    "max_model_len",
    "block_size",
    "num_kv_blocks",
    "kv_cache_bytes",
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "log_level",
    "log_format",
)


def core_command(run_dir: Path) -> list[str]:
    """Starts the core."""
    return [sys.executable, "-m", "scheduler_svc.engine", "--run-dir", str(run_dir)]


def frontend_command(run_dir: Path, name: str) -> list[str]:
    """Starts a frontend."""
    return [
        *(sys.executable, "-m", "scheduler_svc.frontend"),
        *("--run-dir", str(run_dir), "--name", name),
    ]


def workers_command(run_dir: Path, config: ServiceConfig) -> list[str]:
    """Starts the worker supervisor with the settings that concern it."""
    command = [sys.executable, "-m", "worker_svc", "--run-dir", str(run_dir)]
    for name in _WORKER_SETTINGS:
        value = getattr(config, name)
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not False:
            command += [flag, str(value)]
    return command
