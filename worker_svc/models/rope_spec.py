"""How positions turn queries and keys: read from config.json. Knows no tensor.

transformers 4 writes `rope_theta` and `rope_scaling` (its kind under `type` or `rope_type`);
transformers 5 writes both in `rope_parameters`. What is not understood is refused: a scaling that
is silently ignored gives a model that answers a little worse.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

from worker_svc.models.config_reader import ConfigReader

_DEFAULT_THETA = 10_000.0
_KIND_FIELDS = frozenset({"rope_type", "type"})
_SHARED_FIELDS = _KIND_FIELDS | {"rope_theta", "partial_rotary_factor"}
_FIELDS_OF_KIND = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class DefaultRope:
    """No scaling."""

    theta: float


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every frequency divided by one factor (position interpolation, arXiv:2306.15595)."""

    theta: float
    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Low frequencies divided by the factor, high ones kept, a ramp between (Llama 3.1)."""

    theta: float
    factor: float
    low_rotations: float
    high_rotations: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """NTK-by-parts interpolation (YaRN, arXiv:2309.00071); `magnitude` scales cosine and sine."""

    theta: float
    factor: float
    original_max_positions: int
    fast_rotations: float
    slow_rotations: float
    rounds_range: bool
    magnitude: float


RopeSpec: TypeAlias = DefaultRope | LinearRope | Llama3Rope | YarnRope


def parse_rope(config: ConfigReader) -> RopeSpec:
    """The rope of a config.json. Raises `ConfigError` for kinds and fields not understood."""
    section = _rope_section(config)
    kind = _rope_kind(section)
    unknown = sorted(section.fields() - _FIELDS_OF_KIND[kind] - _SHARED_FIELDS)
    if unknown:
        section.refuse(unknown[0], f"is not understood for rope type {kind!r}")
    if section.number("partial_rotary_factor", 1.0) != 1.0:
        section.refuse("partial_rotary_factor", "only 1 (all of each head) is supported")
    theta = section.number("rope_theta", config.number("rope_theta", _DEFAULT_THETA))
    if kind == "default":
        return DefaultRope(theta)
    if kind == "linear":
        return LinearRope(theta, section.number("factor"))
    section = _with_original_length(section, config)
    return _parse_llama3(section, theta) if kind == "llama3" else _parse_yarn(section, theta)


def longest_context(rope: RopeSpec, max_position_embeddings: int) -> int:
    """Positions the model supports. Llama 3.1 states its scaled length, the other kinds do not."""
    if isinstance(rope, LinearRope):
        return int(max_position_embeddings * rope.factor)
    if isinstance(rope, YarnRope):
        return max(max_position_embeddings, int(rope.original_max_positions * rope.factor))
    return max_position_embeddings


def _rope_section(config: ConfigReader) -> ConfigReader:
    if config.has("rope_scaling") and config.has("rope_parameters"):
        config.refuse("rope_scaling", "stands beside rope_parameters; only one may be given")
    return config.section("rope_scaling" if config.has("rope_scaling") else "rope_parameters")


def _rope_kind(section: ConfigReader) -> str:
    kind = section.text("rope_type", section.text("type", "default"))
    if section.text("type", kind) != kind:
        section.refuse("type", f"contradicts rope_type {kind!r}")
    if kind not in _FIELDS_OF_KIND:
        field = "rope_type" if section.has("rope_type") else "type"
        section.refuse(field, f"{kind!r} is not supported; one of {', '.join(_FIELDS_OF_KIND)} is")
    return kind


def _with_original_length(section: ConfigReader, config: ConfigReader) -> ConfigReader:
    field = "original_max_position_embeddings"
    outside = config.count(field, config.count("max_position_embeddings"))
    return section.with_default(field, outside)


def _parse_llama3(section: ConfigReader, theta: float) -> Llama3Rope:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if low >= high:
        section.refuse("low_freq_factor", f"must be below high_freq_factor {high}, not {low}")
    return Llama3Rope(
        theta=theta,
        factor=section.number("factor"),
        low_rotations=low,
        high_rotations=high,
        original_max_positions=section.count("original_max_position_embeddings"),
    )


def _parse_yarn(section: ConfigReader, theta: float) -> YarnRope:
    factor = section.number("factor")
    return YarnRope(
        theta=theta,
        factor=factor,
        original_max_positions=section.count("original_max_position_embeddings"),
        fast_rotations=section.number("beta_fast", 32.0),
        slow_rotations=section.number("beta_slow", 1.0),
        rounds_range=section.flag("truncate", default=True),
        magnitude=_yarn_magnitude(section, factor),
    )


def _yarn_magnitude(section: ConfigReader, factor: float) -> float:
    if section.has("attention_factor"):
        return section.number("attention_factor")
    if section.has("mscale") and section.has("mscale_all_dim"):
        above = _magnitude_at(factor, section.number("mscale"))
        return above / _magnitude_at(factor, section.number("mscale_all_dim"))
    return _magnitude_at(factor, 1.0)


def _magnitude_at(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
