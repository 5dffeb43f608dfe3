"""The service's settings: one frozen value, one table of flags. Knows nothing of who uses them.

Flags are read once, by the supervisor, which writes the checked value into the run folder; its
children read it there, so that no setting travels through a process list.
`docs/configuration.md` is made from this table.
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class InvalidConfig(Exception):
    """A setting breaks its rule; the text names the flag and the rule."""


def _option(
    default: T,
    help_text: str,
    *,
    group: str,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> T:
    metadata = {
        "help": help_text,
        "group": group,
        "choices": choices,
        "at_least": at_least,
        "at_most": at_most,
    }
    made: T = field(default=default, metadata=metadata)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """All settings of one replica. Durations are seconds unless the name says otherwise."""

    model: str = _option(
        "smollm2-135m-instruct",
        "model to serve: a folder, the embedded smollm2-135m-instruct, or the id of a Hugging Face "
        "repository in the local cache",
        group="model",
    )
    served_model_name: str = _option("", "name clients see; empty: the model's own", group="model")
    replica: str = _option(
        "", "this replica's name; empty: host name and a random part", group="model"
    )

    host: str = _option("127.0.0.1", "address of the inference port", group="network")
    port: int = _option(
        50051, "inference port; 0 takes a free one", group="network", at_least=0, at_most=65535
    )
    unix_socket: str = _option(
        "", "serve inference on this unix socket instead of host and port", group="network"
    )
    frontends: int = _option(
        1, "frontend processes sharing the port", group="network", at_least=1, at_most=64
    )
    admin_host: str = _option("127.0.0.1", "address of the admin port", group="network")
    admin_port: int = _option(
        50052, "admin port; 0 takes a free one", group="network", at_least=0, at_most=65535
    )
    metrics_host: str = _option(
        "127.0.0.1", "address of /metrics, /healthz and /readyz", group="network"
    )
    metrics_port: int = _option(
        9464, "metrics port; 0 takes a free one", group="network", at_least=0, at_most=65535
    )
    max_request_bytes: int = _option(
        16 * 2**20, "largest request message in bytes", group="network", at_least=1024
    )

    max_connections: int = _option(
        4096,
        "most connections of each frontend; more are closed at once",
        group="network",
        at_least=1,
    )
    max_connection_age: float = _option(
        0.0,
        "age at which a connection takes no new calls, so that clients connect anew and reach new "
        "replicas; a tenth is added or left out at random; 0: none",
        group="network",
        at_least=0.0,
    )
    connection_age_grace: float = _option(
        300.0,
        "time that calls of such a connection have to end; then they break off, resumable",
        group="network",
        at_least=0.0,
    )

    tls_cert: str = _option(
        "",
        "certificate chain of the inference port, a PEM file, read anew when it changes; empty: "
        "plain text",
        group="security",
    )
    tls_key: str = _option("", "private key of --tls-cert, a PEM file", group="security")
    tls_client_ca: str = _option(
        "",
        "authorities, a PEM file: the inference port takes only clients with a certificate of "
        "theirs",
        group="security",
    )
    api_keys_file: str = _option(
        "",
        "records of API keys, one JSON object a line, as `octavo keys new` prints them, read anew "
        "when they change; empty: no key is asked for, everybody is the tenant default",
        group="security",
    )
    admin_tls_cert: str = _option("", "like --tls-cert, of the admin port", group="security")
    admin_tls_key: str = _option("", "like --tls-key, of the admin port", group="security")
    admin_tls_client_ca: str = _option(
        "", "like --tls-client-ca, of the admin port", group="security"
    )
    admin_keys_file: str = _option("", "like --api-keys-file, of the admin port", group="security")

    workers: str = _option(
        "local",
        "local: this service starts its workers; external: they come by themselves, over the run "
        "folder",
        group="workers",
        choices=("local", "external"),
    )
    run_dir: str = _option(
        "",
        "private folder of sockets; empty: a new one under the temporary folder",
        group="workers",
    )
    tensor_parallel_size: int = _option(
        1, "ranks, one GPU each", group="workers", at_least=1, at_most=64
    )
    device: str = _option(
        "auto", "where tensors live", group="workers", choices=("auto", "cpu", "cuda")
    )
    dtype: str = _option(
        "auto",
        "type of weights and KV cache; auto: the checkpoint's, but float32 on a CPU that lacks "
        "bfloat16 instructions",
        group="workers",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    load_format: str = _option(
        "auto",
        "auto reads the checkpoint; random makes weights of its shapes, for benchmarks",
        group="workers",
        choices=("auto", "random"),
    )
    attention_backend: str = _option(
        "auto",
        "attention implementation",
        group="workers",
        choices=("auto", "torch", "fa3", "fa2", "triton"),
    )
    all_reduce: str = _option(
        "auto",
        "how GPUs sum over ranks; auto: small sums in memory that they share, large ones by NCCL",
        group="workers",
        choices=("auto", "nccl"),
    )
    enforce_eager: bool = _option(False, "never use CUDA graphs", group="workers")
    cpu_threads: int = _option(
        0, "threads of each CPU rank; 0: physical cores over ranks", group="workers", at_least=0
    )

    max_model_len: int = _option(
        0,
        "most tokens, prompt and output together, of one sequence; 0: the model's own limit",
        group="memory",
        at_least=0,
    )
    block_size: int = _option(16, "tokens in a KV block", group="memory", at_least=1, at_most=1024)
    num_kv_blocks: int = _option(
        0, "KV blocks, exactly; 0: as many as fit", group="memory", at_least=0
    )
    kv_cache_bytes: int = _option(
        0,
        "bytes of KV cache for each rank, exactly; 0: measured on a GPU, 1 GiB on a CPU",
        group="memory",
        at_least=0,
    )
    gpu_memory_utilization: float = _option(
        0.9,
        "share of each GPU's memory this service may use in all",
        group="memory",
        at_least=0.01,
        at_most=1.0,
    )

    max_num_batched_tokens: int = _option(
        2048, "most tokens computed in one step", group="scheduling", at_least=1
    )
    max_num_seqs: int = _option(
        256, "most sequences in the running batch", group="scheduling", at_least=1, at_most=65536
    )
    max_steps_in_flight: int = _option(
        2, "steps sent ahead of their results", group="scheduling", at_least=1, at_most=2
    )
    no_prefix_cache: bool = _option(
        False, "compute every prompt from its first token", group="scheduling"
    )
    max_prefill_chunk_tokens: int = _option(
        0,
        "most prompt tokens of one sequence in one step; 0: the step's budget decides",
        group="scheduling",
        at_least=0,
    )
    target_token_time_ms: float = _option(
        100.0,
        "time per output token to keep when prefill chunks share steps with running streams",
        group="scheduling",
        at_least=1.0,
    )
    max_step_stretch: float = _option(
        1.7,
        "longest step with a piece of a long prompt beside running streams, in steps without "
        "prompts; short prompts may stretch it half as much again, a backlog of prompts further; "
        "0: only --target-token-time-ms counts",
        group="scheduling",
        at_least=0.0,
    )
    max_queue_requests: int = _option(
        2048, "most waiting requests; more are refused", group="scheduling", at_least=1
    )
    max_queue_tokens: int = _option(
        4_000_000, "most prompt tokens waiting; more are refused", group="scheduling", at_least=1
    )
    max_queue_time: float = _option(
        0.0,
        "seconds that a request may wait for its first step before it ends with "
        "RESOURCE_EXHAUSTED; 0: no limit",
        group="scheduling",
        at_least=0.0,
    )
    max_outputs: int = _option(
        16, "largest n of a request", group="scheduling", at_least=1, at_most=1024
    )
    max_top_logprobs: int = _option(
        20,
        "most of the likeliest tokens that a request may have told with each token",
        group="scheduling",
        at_least=0,
        at_most=1000,
    )

    structured_output: str = _option(
        "on",
        "serve requests whose output must have a form: JSON, a regular expression, a grammar",
        group="requests",
        choices=("on", "off"),
    )
    grammar_compile_limit: float = _option(
        30.0, "seconds a request waits for its grammar", group="requests", at_least=0.1
    )
    grammar_cache_size: int = _option(
        64, "compiled grammars kept for requests to come", group="requests", at_least=1
    )
    grammar_cache_mib: int = _option(
        64, "MiB that they may take, estimated from their text", group="requests", at_least=1
    )

    step_deadline_floor: float = _option(
        10.0, "shortest time a step is waited for", group="reliability", at_least=0.1
    )
    orphan_grace: float = _option(
        10.0, "time a request outlives its frontend", group="reliability", at_least=0.0
    )
    max_keep_for: float = _option(
        600.0, "longest keep_for_s of a request", group="reliability", at_least=0.0
    )
    max_retained_tokens: int = _option(
        4_000_000, "most tokens of ended requests kept for Attach", group="reliability", at_least=0
    )
    core_restart_grace: float = _option(
        5.0, "time new requests wait for a restarting core", group="reliability", at_least=0.0
    )
    slow_reader_limit: float = _option(
        60.0, "time a client may leave its stream unread", group="reliability", at_least=1.0
    )
    withdrawal_window: float = _option(
        0.0,
        "time between not ready and refusing new requests in a drain",
        group="reliability",
        at_least=0.0,
    )
    drain_limit: float = _option(
        30.0, "longest wait for running requests in a drain", group="reliability", at_least=0.0
    )

    log_level: str = _option(
        "info",
        "least severe line logged",
        group="logging",
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str = _option(
        "text", "form of log lines", group="logging", choices=("text", "json")
    )

    tracing: bool = _option(
        False,
        "export OpenTelemetry spans of requests; OTEL_* environment variables say where to, how "
        "many and by which protocol; needs octavo[tracing]",
        group="tracing",
    )

    def to_json(self) -> str:
        """The settings as a JSON object, readable by `from_json`."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ServiceConfig":
        """Settings written by `to_json`; raises InvalidConfig if they were not."""
        try:
            return checked(cls(**json.loads(text)))
        except (TypeError, ValueError) as error:
            raise InvalidConfig(f"not a settings file of this version: {error}") from error


def flag_name(setting: dataclasses.Field[Any]) -> str:
    """The command-line flag of a setting."""
    return "--" + setting.name.replace("_", "-")


def checked(config: ServiceConfig) -> ServiceConfig:
    """The same settings, once every rule holds; raises InvalidConfig naming the flag otherwise."""
    for setting in dataclasses.fields(ServiceConfig):
        _check_range(setting, getattr(config, setting.name))
    if config.num_kv_blocks and config.kv_cache_bytes:
        raise InvalidConfig("--num-kv-blocks and --kv-cache-bytes exclude each other: set one")
    if config.unix_socket and config.frontends > 1:
        raise InvalidConfig("--frontends must be 1 with --unix-socket: only ports are shared")
    if 0 < config.max_step_stretch < 1:
        raise InvalidConfig(
            f"--max-step-stretch must be 0 or at least 1, got {config.max_step_stretch:g}"
        )
    if config.block_size & (config.block_size - 1):
        raise InvalidConfig(f"--block-size must be a power of two, got {config.block_size}")
    _check_tls(config)
    if config.tracing and not _has_tracing():
        raise InvalidConfig("--tracing needs OpenTelemetry: pip install 'octavo[tracing]'")
    return config


def _has_tracing() -> bool:
    try:
        return find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:  # not even the parent package
        return False


def _check_tls(config: ServiceConfig) -> None:
    for flag, cert, key, client_ca in (
        ("--tls", config.tls_cert, config.tls_key, config.tls_client_ca),
        ("--admin-tls", config.admin_tls_cert, config.admin_tls_key, config.admin_tls_client_ca),
    ):
        if bool(cert) != bool(key):
            raise InvalidConfig(f"{flag}-cert and {flag}-key belong together: set both")
        if client_ca and not cert:
            raise InvalidConfig(f"{flag}-client-ca needs {flag}-cert and {flag}-key")
    if config.tls_cert and config.unix_socket:
        raise InvalidConfig("--tls-cert needs a port: a unix socket has no TLS")


def _check_range(setting: dataclasses.Field[Any], value: Any) -> None:
    rules = setting.metadata
    flag = flag_name(setting)
    if rules["choices"] and value not in rules["choices"]:
        raise InvalidConfig(f"{flag} must be one of {', '.join(rules['choices'])}, got {value!r}")
    # written so that NaN fails too
    if rules["at_least"] is not None and not value >= rules["at_least"]:
        raise InvalidConfig(f"{flag} must be at least {rules['at_least']:g}, got {value}")
    if rules["at_most"] is not None and not value <= rules["at_most"]:
        raise InvalidConfig(f"{flag} must be at most {rules['at_most']:g}, got {value}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per setting to a parser, in groups."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for setting in dataclasses.fields(ServiceConfig):
        name = setting.metadata["group"]
        group = groups.setdefault(name, parser.add_argument_group(name))
        if setting.type is bool or isinstance(setting.default, bool):
            group.add_argument(
                flag_name(setting), action="store_true", help=setting.metadata["help"]
            )
            continue
        group.add_argument(
            flag_name(setting),
            type=type(setting.default),
            default=setting.default,
            choices=setting.metadata["choices"] or None,
            metavar=None if setting.metadata["choices"] else type(setting.default).__name__.upper(),
            help=f"{setting.metadata['help']} (default: {setting.default!r})".replace("%", "%%"),
        )


def parse_flags(arguments: Sequence[str], *, program: str) -> ServiceConfig:
    """Settings from a command line; exits with a usage message on unknown flags.

    Raises InvalidConfig where a rule is broken.
    """
    parser = argparse.ArgumentParser(
        prog=program, description="Octavo: serve a language model over gRPC."
    )
    add_flags(parser)
    return checked(ServiceConfig(**vars(parser.parse_args(list(arguments)))))


def write_config(config: ServiceConfig, run_dir: Path) -> None:
    """Leaves the settings in the run folder, readable by its owner only."""
    path = run_dir / "config.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(config.to_json())


def read_config(run_dir: Path) -> ServiceConfig:
    """Settings from the run folder; raises InvalidConfig naming the file."""
    path = run_dir / "config.json"
    try:
        return ServiceConfig.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from error
