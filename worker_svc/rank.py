"""`python -m worker_svc.rank`: one rank with a real model. Started by the worker supervisor."""

import logging
import sys
from collections.abc import Callable

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.model_choice import ChosenModel, choose_model
from worker_svc.process import die_with_parent
from worker_svc.rank_model import RankModel
from worker_svc.rank_process import rank_parser, run_rank
from worker_svc.rank_start import RankStart

_LOGGER = logging.getLogger(__name__)


def load_model(start: RankStart, config: WorkerConfig) -> RankModel:
    """Loads the folder's model; raises InvalidConfig or ModelError."""
    chosen = choose_model(config)
    try:
        load = _loader(config, chosen)
    except ModuleNotFoundError as error:
        extra = "worker" if chosen.device == "cpu" or error.name == "torch" else "gpu"
        raise InvalidConfig(
            f"the worker needs the package {error.name}: install octavo[{extra}]"
        ) from error
    return load(start, config, chosen)


def _loader(
    config: WorkerConfig, chosen: ChosenModel
) -> Callable[[RankStart, WorkerConfig, ChosenModel], RankModel]:
    # torch takes seconds to import: only in a process that is tied to its parent
    if chosen.device == "cuda" and (config.device == "cuda" or _torch_finds_gpu()):
        from worker_svc.gpu_model import load_gpu_model  # noqa: PLC0415

        return load_gpu_model
    from worker_svc.cpu_model import load_cpu_model  # noqa: PLC0415

    return load_cpu_model


def _torch_finds_gpu() -> bool:
    import torch  # noqa: PLC0415 - as above

    if torch.cuda.is_available():
        return True
    _LOGGER.warning(
        "this machine has a GPU, but torch %s finds none: computing on the CPU", torch.__version__
    )
    return False


def main() -> int:
    """Runs the rank; returns the exit status."""
    die_with_parent()
    return run_rank(rank_parser("worker_svc.rank").parse_args(), load=load_model)


if __name__ == "__main__":
    sys.exit(main())
