"""`python -m tests.gpu.faulty_rank`: the real rank, with faults of the device before its steps.

The folder that FAULTS names holds wishes: a file `spin-RANK` keeps the GPU busy for ever with a
real kernel, `memory-RANK` lets the process have no more of the GPU's memory. Each is done once.
"""

import os
import sys
from pathlib import Path

import torch

from worker_svc.batch_step import BatchStep
from worker_svc.config import WorkerConfig
from worker_svc.process import die_with_parent
from worker_svc.rank import load_model
from worker_svc.rank_model import ModelFacts, RankModel
from worker_svc.rank_process import rank_parser, run_rank
from worker_svc.rank_start import RankStart
from worker_svc.step_runner import StepOutcome, StepRunner

FAULTS = "OCTAVO_TEST_FAULTS"
_FOR_EVER = 1 << 62


class FaultyRunner:
    """A `StepRunner` that looks for wishes before each launch."""

    def __init__(self, runner: StepRunner, *, folder: Path, rank: int) -> None:
        self._runner = runner
        self._folder = folder
        self._rank = rank
        self.begin_epoch = runner.begin_epoch
        self.time_limit_ms = runner.time_limit_ms
        self.is_done = runner.is_done

    def launch(self, step: BatchStep, *, received_ns: int) -> None:
        """The step, behind what was wished."""
        if self._takes("spin"):
            torch.cuda._sleep(_FOR_EVER)  # type: ignore[no-untyped-call]  # no public name
        if self._takes("memory"):
            torch.cuda.empty_cache()
            # what is taken stays; the next block from the driver is refused
            torch.cuda.set_per_process_memory_fraction(1e-6)
        self._runner.launch(step, received_ns=received_ns)

    def collect(self) -> StepOutcome:
        """As the real one."""
        return self._runner.collect()

    def _takes(self, fault: str) -> bool:
        try:
            (self._folder / f"{fault}-{self._rank}").unlink()
        except FileNotFoundError:
            return False
        return True


class FaultyModel:
    """A `RankModel` with a faulty runner."""

    def __init__(self, model: RankModel, *, folder: Path, rank: int) -> None:
        self._model = model
        self._folder = folder
        self._rank = rank

    @property
    def facts(self) -> ModelFacts:
        """Of the real one."""
        return self._model.facts

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        """The real runner, wrapped."""
        runner = self._model.prepare(num_blocks=num_blocks, num_tokenizer_ids=num_tokenizer_ids)
        return FaultyRunner(runner, folder=self._folder, rank=self._rank)


def load_faulty_model(start: RankStart, config: WorkerConfig) -> RankModel:
    """The real model, wrapped."""
    folder = Path(os.environ[FAULTS])
    return FaultyModel(load_model(start, config), folder=folder, rank=start.rank)


def main() -> int:
    """Runs the rank; returns the exit status."""
    die_with_parent()
    return run_rank(rank_parser("faulty_rank").parse_args(), load=load_faulty_model)


if __name__ == "__main__":
    sys.exit(main())
