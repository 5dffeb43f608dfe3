"""Which model a rank serves and how far, checked before anything heavy loads. Knows no tensor."""

from dataclasses import dataclass
from pathlib import Path

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.device_choice import choose_device
from worker_svc.models.spec import ModelSpec, parse_model_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenModel:
    """A model folder whose config.json can be served."""

    folder: Path
    device: str
    """Either "cuda" or "cpu"."""
    spec: ModelSpec
    max_model_len: int
    """Most tokens, prompt and output together, of one sequence."""


def choose_model(config: WorkerConfig) -> ChosenModel:
    """The model of the settings; raises InvalidConfig or ModelError for what cannot be served."""
    device = choose_device(config.device)
    if device == "cpu" and config.attention_backend not in {"auto", "torch"}:
        raise InvalidConfig(
            f"--attention-backend {config.attention_backend} does not run on a CPU: use torch"
        )
    folder = Path(config.model)
    if not folder.is_dir():
        raise InvalidConfig(f"--model {config.model}: no such folder")
    spec = parse_model_spec(folder / "config.json")
    if config.max_model_len > spec.longest_context:
        raise InvalidConfig(
            f"--max-model-len {config.max_model_len} exceeds what the model supports:"
            f" {spec.longest_context} tokens"
        )
    return ChosenModel(
        folder=folder,
        device=device,
        spec=spec,
        max_model_len=config.max_model_len or spec.longest_context,
    )
