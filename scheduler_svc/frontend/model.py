"""What a frontend knows of the served checkpoint: tokenizer, template, ids, limits, defaults.

Read once from the model folder. Knows nothing of weights or requests.
"""

from dataclasses import dataclass
from pathlib import Path

from scheduler_svc.frontend.text.chat_renderer import ChatRenderer
from scheduler_svc.frontend.text.checkpoint_json import read_object
from scheduler_svc.frontend.text.errors import TokenizerFileInvalid
from scheduler_svc.frontend.text.tokenizer import Tokenizer

_CONFIG = "config.json"
_GENERATION_CONFIG = "generation_config.json"
# Sequences longer than this cannot be told apart from a mistake in the file.
_MAX_POSITIONS = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultSampling:
    """What unset sampling fields mean."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedModel:
    """A checkpoint as the text world sees it."""

    name: str
    architecture: str
    tokenizer: Tokenizer
    chat_template: ChatRenderer | None
    vocab_size: int
    max_positions: int
    default_sampling: DefaultSampling
    hidden_size: int = 0  # 0: the config does not say


def load_served_model(model_dir: Path, *, name: str) -> ServedModel:
    """Reads the folder; takes up to some seconds. Raises TokenizerFileInvalid naming the file."""
    tokenizer = Tokenizer.load(model_dir)
    path = model_dir / _CONFIG
    config = read_object(path)
    architectures = config.get("architectures")
    listed = isinstance(architectures, list) and architectures and str(architectures[0])
    return ServedModel(
        name=name,
        architecture=listed or "",
        tokenizer=tokenizer,
        chat_template=ChatRenderer.load(model_dir, special_tokens=tokenizer.special_tokens),
        vocab_size=_count(path, config.get("vocab_size"), key="vocab_size"),
        max_positions=_count(
            path, config.get("max_position_embeddings"), key="max_position_embeddings"
        ),
        default_sampling=_default_sampling(model_dir / _GENERATION_CONFIG),
        hidden_size=_hidden_size(config.get("hidden_size")),
    )


def _hidden_size(value: object) -> int:
    return value if isinstance(value, int) and 1 <= value <= _MAX_POSITIONS else 0


def _count(path: Path, value: object, *, key: str) -> int:
    if isinstance(value, int) and 1 <= value <= _MAX_POSITIONS:
        return value
    raise TokenizerFileInvalid(path, f"{key} must be 1 to {_MAX_POSITIONS}, is {value!r}")


def _default_sampling(path: Path) -> DefaultSampling:
    values = read_object(path)

    def number(key: str, default: float, *, least: float, most: float) -> float:
        value = values.get(key)
        if value is None:
            return default
        if isinstance(value, int | float) and least <= value <= most:
            return float(value)
        raise TokenizerFileInvalid(path, f"{key} must be {least:g} to {most:g}, is {value!r}")

    return DefaultSampling(
        temperature=number("temperature", 1.0, least=0, most=100),
        top_k=max(0, int(number("top_k", 0, least=-1, most=2**31 - 1))),
        top_p=number("top_p", 1.0, least=0, most=1),
        min_p=number("min_p", 0.0, least=0, most=1),
        repetition_penalty=number("repetition_penalty", 1.0, least=0.01, most=100),
    )
