"""`python -m worker_svc.rank`: one rank with a real model. Started by the worker supervisor."""

import sys

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.model_choice import choose_model
from worker_svc.process import die_with_parent
from worker_svc.rank_model import RankModel
from worker_svc.rank_process import rank_parser, run_rank
from worker_svc.rank_start import RankStart


def load_model(start: RankStart, config: WorkerConfig) -> RankModel:
    """Loads the folder's model; raises InvalidConfig or ModelError."""
    chosen = choose_model(config)
    try:
        # torch takes seconds to import: only in a process that is tied to its parent
        from worker_svc.cpu_model import load_cpu_model  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"the worker needs the package {error.name}: install octavo[worker]"
        ) from error
    return load_cpu_model(start, config, chosen)


def main() -> int:
    """Runs the rank; returns the exit status."""
    die_with_parent()
    return run_rank(rank_parser("worker_svc.rank").parse_args(), load=load_model)


if __name__ == "__main__":
    sys.exit(main())
