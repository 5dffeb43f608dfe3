"""A loaded model as the rank's loop sees it. Knows no tensor and no message."""

from dataclasses import dataclass
from typing import Protocol

from worker_svc.config import WorkerConfig
from worker_svc.rank_start import RankStart
from worker_svc.step_runner import StepRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What the core must know of a model on this rank."""

    model_type: str
    digest: bytes
    vocab_size: int
    max_model_len: int
    num_blocks: int
    """KV blocks this rank can hold, the trash block included."""
    keeps_tables: bool = False
    """Whether its runner keeps the slots' block tables itself, out of each step's new blocks."""


class RankModel(Protocol):
    """A model whose weights are there; its cache is not, for all ranks must first agree on it."""

    @property
    def facts(self) -> ModelFacts:
        """What this rank can offer."""
        ...

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        """Take the memory for exactly `num_blocks` and get ready for steps. Called once.

        Ids from `num_tokenizer_ids` on are never chosen. Raises InvalidConfig if there is no room.
        """
        ...


class LoadModel(Protocol):
    """Loads the model of one rank."""

    def __call__(self, start: RankStart, config: WorkerConfig) -> RankModel:
        """Raise InvalidConfig or ModelError for what no restart can mend."""
        ...
