"""A real model on a GPU rank: loaded and measured here; cache and graphs come once all agree."""

import gc
import logging
from dataclasses import replace

import torch

from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.execution.graph_device import CudaDevice
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.gpu_backend import Ranks, choose_backend
from worker_svc.gpu_measure import assemble_on, measure
from worker_svc.gpu_memory import account, num_gpu_blocks, room_for
from worker_svc.layers.fused import FusedBackend
from worker_svc.log import ProgressLog
from worker_svc.model_choice import ChosenModel
from worker_svc.model_digest import model_digest
from worker_svc.models.decoder import Decoder, check_parallel_size
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import ParallelGroup, SingleRank
from worker_svc.parallel.nccl import NcclGroup
from worker_svc.phases import Phases
from worker_svc.rank_model import ModelFacts, RankModel
from worker_svc.rank_start import RankStart
from worker_svc.step_runner import StepRunner
from worker_svc.weights.dtype import choose_dtype
from worker_svc.weights.loader import load_model
from worker_svc.weights.random_weights import fill_randomly

_LOGGER = logging.getLogger(__name__)

# ranks meet here: longer than any honest difference between their starts
_MEETING_LIMIT_S = 120.0
_BLOCKS_TO_MEASURE_WITH = 2


class GpuModel:
    """A `RankModel` whose runner launches steps and has their results later."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        device: CudaDevice,
        decoder: Decoder,
        group: ParallelGroup,
        layout: KVLayout,
        digest: bytes,
        phases: Phases,
        is_restart: bool,
    ) -> None:
        """`layout` has as many blocks as this rank can hold; `phases` of the start so far."""
        self._is_restart = is_restart
        self._config = config
        self._device = device
        self._decoder = decoder
        self._group = group
        self._layout = layout
        self._digest = digest
        self._phases = phases

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        return ModelFacts(
            model_type=self._decoder.spec.architecture,
            digest=self._digest,
            vocab_size=self._decoder.spec.vocab_size,
            max_model_len=self._decoder.num_positions,
            num_blocks=self._layout.num_blocks,
            keeps_tables=True,
        )

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        """Takes the cache's memory and records graphs."""
        layout = replace(self._layout, num_blocks=num_blocks)
        wish = f"a KV cache of {layout.num_bytes:,} bytes"
        with self._phases.phase("KV cache"), room_for(wish, is_restart=self._is_restart):
            cache = KVCache.allocate(layout, device=self._device.device)
        assembly = assemble_on(
            self._device,
            self._config,
            decoder=self._decoder,
            group=self._group,
            cache=cache,
            num_tokenizer_ids=num_tokenizer_ids,
        )
        before = torch.cuda.memory_reserved(self._device.device)
        with self._phases.phase("kernels and graphs"):
            assembly.programs.get_ready()
            self._device.finish()
        grown = torch.cuda.memory_reserved(self._device.device) - before
        _LOGGER.info("steps and graphs took %.2f GiB more", grown / 2**30)
        # nothing loaded so far is garbage: later collections need not look at it
        gc.collect()
        gc.freeze()
        self._phases.log(_LOGGER)
        return assembly.runner


def load_gpu_model(start: RankStart, config: WorkerConfig, chosen: ChosenModel) -> RankModel:
    """Loads this rank's part of the model.

    Raises InvalidConfig or ModelError, or `MemoryTakenError` when a later start may find room.
    """
    spec = chosen.spec
    check_parallel_size(spec, config.tensor_parallel_size)
    phases = Phases()
    with phases.phase("GPU and ranks"):
        device = _take_device(start, config)
        ranks = _join(start, config, device)
        group = ranks.group
    torch.set_num_threads(1)
    dtype = choose_dtype(
        config.dtype, stored=spec.stored_dtype, device=device.device, processor_flags=frozenset()
    )
    is_restart = start.num_restarts > 0
    with phases.phase("weights"), room_for("the model's weights", is_restart=is_restart):
        decoder = _load(config, chosen, device=device.device, ranks=ranks, dtype=dtype)
    layout = KVLayout.of_model(
        spec,
        num_blocks=_BLOCKS_TO_MEASURE_WITH,
        block_size=config.block_size,
        num_ranks=group.size,
        dtype=dtype,
    )
    with phases.phase("measuring"), room_for("the largest step", is_restart=is_restart):
        use = measure(device, config, decoder=decoder, group=group, layout=layout)
    with room_for("a KV cache", is_restart=is_restart):
        num_blocks = num_gpu_blocks(config, layout, use, max_model_len=chosen.max_model_len)
    _LOGGER.info("%d KV blocks: %s", num_blocks, account(config, layout, use).partition(";")[0])
    return GpuModel(
        config,
        device=device,
        decoder=decoder,
        group=group,
        layout=replace(layout, num_blocks=num_blocks),
        digest=model_digest(chosen.folder),
        phases=phases,
        is_restart=is_restart,
    )


def _take_device(start: RankStart, config: WorkerConfig) -> CudaDevice:
    if not torch.cuda.is_available():
        raise InvalidConfig(f"--device cuda: torch {torch.__version__} finds no CUDA device")
    num_devices = torch.cuda.device_count()
    if config.tensor_parallel_size > num_devices:
        raise InvalidConfig(
            f"--tensor-parallel-size {config.tensor_parallel_size} needs as many GPUs;"
            f" {num_devices} can be seen"
        )
    device = CudaDevice(start.rank)
    device.take_over()
    return device


def _join(start: RankStart, config: WorkerConfig, device: CudaDevice) -> Ranks:
    if config.tensor_parallel_size == 1:
        return Ranks(SingleRank())
    group = NcclGroup.connect(
        rank=start.rank,
        size=config.tensor_parallel_size,
        rendezvous=start.rendezvous,
        device=device.device,
        timeout_s=_MEETING_LIMIT_S,
    )
    if config.all_reduce == "nccl":
        return Ranks(group)
    # needs triton, which whoever only imports this module may lack
    from worker_svc.parallel.peer_memory import (  # noqa: PLC0415
        PeerMemory,
        PeerMemoryUnavailableError,
    )

    try:
        peers = PeerMemory.connect(group, device=device.device)
    except PeerMemoryUnavailableError as error:
        _LOGGER.info("sums over ranks all through NCCL, not peer memory: %s", error)
        return Ranks(group)
    _LOGGER.info("sums over ranks in peer memory %s", peers.switch_over)
    return Ranks(group, peers)


def _load(
    config: WorkerConfig,
    chosen: ChosenModel,
    *,
    device: torch.device,
    ranks: Ranks,
    dtype: torch.dtype,
) -> Decoder:
    spec, num_positions = chosen.spec, chosen.max_model_len
    _LOGGER.info("%s in %s from %s", spec.architecture, str(dtype).rpartition(".")[2], config.model)
    backend = choose_backend(config, spec, ranks=ranks, device=device, dtype=dtype)
    if config.load_format == "random":
        return random_decoder(
            spec,
            group=ranks.group,
            backend=backend,
            dtype=dtype,
            device=device,
            num_positions=num_positions,
        )
    return load_model(
        chosen.folder,
        spec=spec,
        group=ranks.group,
        backend=backend,
        dtype=dtype,
        device=device,
        num_positions=num_positions,
        progress=ProgressLog(_LOGGER, "loading weights"),
    )


@torch.inference_mode()
def random_decoder(
    spec: ModelSpec,
    *,
    group: ParallelGroup,
    backend: FusedBackend,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
) -> Decoder:
    """A model with weights of no meaning, for benchmarks."""
    decoder = Decoder(
        spec,
        group=group,
        backend=backend,
        dtype=dtype,
        device=device,
        num_positions=num_positions,
    )
    fill_randomly(decoder.shards())
    return decoder
