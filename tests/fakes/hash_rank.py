"""`python -m tests.fakes.hash_rank`: a hash-token rank, with the real channel and batch."""

import argparse
import functools
import json
import sys
from pathlib import Path

import xxhash

from tests.fakes.hash_faults import Faults, add_fault_flags, faults_of
from tests.fakes.hash_runner import HashRunner
from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.process import die_with_parent
from worker_svc.rank_model import ModelFacts, RankModel
from worker_svc.rank_process import rank_parser, run_rank
from worker_svc.rank_start import RankStart
from worker_svc.step_runner import StepRunner, SynchronousRunner

_DEFAULT_VOCAB_SIZE = 32_000
_DEFAULT_MODEL_LEN = 4_096
_DEFAULT_NUM_BLOCKS = 4_096


class HashModel:
    """A `RankModel` without weights."""

    def __init__(
        self, config: WorkerConfig, *, facts: ModelFacts, eos_every: int, faults: Faults
    ) -> None:
        self._config = config
        self._facts = facts
        self._eos_every = eos_every
        self._faults = faults

    @property
    def facts(self) -> ModelFacts:
        """As large as the flags say."""
        return self._facts

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        """Makes the cache."""
        runner = HashRunner(
            num_blocks=num_blocks,
            block_size=self._config.block_size,
            num_slots=self._config.max_num_seqs,
            vocab_size=num_tokenizer_ids,
            eos_every=self._eos_every,
            faults=self._faults,
        )
        return SynchronousRunner(runner.execute, on_epoch=runner.forget)


def add_hash_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what only this worker knows."""
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=0,
        help=f"0: of the model's config.json, else {_DEFAULT_VOCAB_SIZE}",
    )
    parser.add_argument(
        "--eos-every",
        type=int,
        default=0,
        help="about every n-th token is the first stop id; 0: off",
    )
    add_fault_flags(parser)


def load_hash_model(
    start: RankStart, config: WorkerConfig, *, arguments: argparse.Namespace
) -> RankModel:
    """The model that the flags describe; a model folder only lends its vocabulary and length."""
    shape = _shape_of(config.model)
    vocab_size = arguments.vocab_size or shape.get("vocab_size", _DEFAULT_VOCAB_SIZE)
    max_model_len = config.max_model_len or shape.get("max_position_embeddings", _DEFAULT_MODEL_LEN)
    facts = ModelFacts(
        model_type="hash-token",
        digest=xxhash.xxh3_128_digest(f"{vocab_size} {arguments.eos_every}".encode()),
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        num_blocks=config.num_kv_blocks or _DEFAULT_NUM_BLOCKS,
    )
    return HashModel(
        config, facts=facts, eos_every=arguments.eos_every, faults=faults_of(arguments)
    )


def _shape_of(model: str) -> dict[str, int]:
    if not model:
        return {}
    path = Path(model) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"--model: cannot read {path}: {error}") from error
    return {name: value for name, value in config.items() if isinstance(value, int)}


def main() -> int:
    """Runs the rank; returns the exit status."""
    die_with_parent()
    parser = rank_parser("hash_rank")
    add_hash_flags(parser)
    arguments = parser.parse_args()
    return run_rank(arguments, load=functools.partial(load_hash_model, arguments=arguments))


if __name__ == "__main__":
    sys.exit(main())
