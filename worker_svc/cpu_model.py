"""A real model on a CPU rank: loaded here, its cache taken once all ranks agree."""

import logging
from dataclasses import replace

import torch

from worker_svc.attention.torch_backend import TorchBackend
from worker_svc.config import WorkerConfig
from worker_svc.execution.kv_cache import KVLayout
from worker_svc.execution.runner import ModelRunner
from worker_svc.execution.sampler import Sampler
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.kv_memory import allocate_cache, num_cpu_blocks
from worker_svc.layers.embedding import rows_per_rank
from worker_svc.log import ProgressLog
from worker_svc.model_choice import ChosenModel
from worker_svc.model_digest import model_digest
from worker_svc.models.decoder import Decoder, check_parallel_size
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.gloo import GlooGroup
from worker_svc.parallel.group import ParallelGroup, SingleRank
from worker_svc.rank_model import ModelFacts, RankModel
from worker_svc.rank_start import RankStart
from worker_svc.step_runner import StepRunner, SynchronousRunner
from worker_svc.threads import threads_per_rank
from worker_svc.weights.dtype import choose_dtype, read_processor_flags
from worker_svc.weights.loader import load_model
from worker_svc.weights.random_weights import fill_randomly

_LOGGER = logging.getLogger(__name__)

_CPU = torch.device("cpu")
# ranks meet here, and wait for each other in every layer: longer than any honest difference
_EXCHANGE_LIMIT_S = 120.0
# a processor slower than this is taken to hang
_LEAST_OPERATIONS_PER_S = 5e9


class CpuModel:
    """A `RankModel` whose runner computes while it launches."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        decoder: Decoder,
        group: ParallelGroup,
        layout: KVLayout,
        digest: bytes,
    ) -> None:
        """`layout` has as many blocks as this rank can hold."""
        self._config = config
        self._decoder = decoder
        self._group = group
        self._layout = layout
        self._digest = digest

    @property
    def facts(self) -> ModelFacts:
        """Of the loaded model."""
        return ModelFacts(
            model_type=self._decoder.spec.architecture,
            digest=self._digest,
            vocab_size=self._decoder.spec.vocab_size,
            max_model_len=self._decoder.num_positions,
            num_blocks=self._layout.num_blocks,
        )

    def prepare(self, *, num_blocks: int, num_tokenizer_ids: int) -> StepRunner:
        """Takes the cache's memory."""
        spec, first_id = self._decoder.spec, self._decoder.first_vocabulary_id
        part = VocabularyPart(
            first_id=first_id,
            num_ids=rows_per_rank(spec.vocab_size, self._group),
            num_tokenizer_ids=num_tokenizer_ids,
        )
        runner = ModelRunner(
            model=self._decoder,
            cache=allocate_cache(replace(self._layout, num_blocks=num_blocks)),
            sampler=Sampler(part=part, group=self._group),
            num_slots=self._config.max_num_seqs,
        )
        operations = 2 * _num_weights(spec) / self._group.size
        return SynchronousRunner(
            runner.execute, limit_ms_per_token=1000 * operations / _LEAST_OPERATIONS_PER_S
        )


def load_cpu_model(start: RankStart, config: WorkerConfig, chosen: ChosenModel) -> RankModel:
    """Loads this rank's part of the model; raises InvalidConfig or ModelError."""
    spec = chosen.spec
    dtype = choose_dtype(
        config.dtype,
        stored=spec.stored_dtype,
        device=_CPU,
        processor_flags=read_processor_flags(),
    )
    size = config.tensor_parallel_size
    check_parallel_size(spec, size)
    torch.set_num_threads(threads_per_rank(config.cpu_threads, num_ranks=size))
    layout = KVLayout.of_model(
        spec, num_blocks=0, block_size=config.block_size, num_ranks=size, dtype=dtype
    )
    layout = replace(
        layout, num_blocks=num_cpu_blocks(config, layout, max_model_len=chosen.max_model_len)
    )
    group = _join(start, size)
    decoder = _load(config, chosen, group=group, dtype=dtype)
    digest = model_digest(chosen.folder)
    return CpuModel(config, decoder=decoder, group=group, layout=layout, digest=digest)


def _join(start: RankStart, size: int) -> ParallelGroup:
    if size == 1:
        return SingleRank()
    return GlooGroup.connect(
        rank=start.rank, size=size, rendezvous=start.rendezvous, timeout_s=_EXCHANGE_LIMIT_S
    )


def _load(
    config: WorkerConfig, chosen: ChosenModel, *, group: ParallelGroup, dtype: torch.dtype
) -> Decoder:
    spec, num_positions = chosen.spec, chosen.max_model_len
    _LOGGER.info("%s in %s from %s", spec.architecture, str(dtype).rpartition(".")[2], config.model)
    backend = TorchBackend()
    if config.load_format == "random":
        decoder = Decoder(
            spec,
            group=group,
            backend=backend,
            dtype=dtype,
            device=_CPU,
            num_positions=num_positions,
        )
        with torch.inference_mode():
            fill_randomly(decoder.shards())
            decoder.pack()
        return decoder
    return load_model(
        chosen.folder,
        spec=spec,
        group=group,
        backend=backend,
        dtype=dtype,
        device=_CPU,
        num_positions=num_positions,
        progress=ProgressLog(_LOGGER, "loading weights"),
    )


def _num_weights(spec: ModelSpec) -> int:
    """Weights that a token is multiplied with, about."""
    heads = spec.num_heads + 2 * spec.num_kv_heads + spec.num_heads
    attention = spec.hidden_size * spec.head_dim * heads
    feed_forward = 3 * spec.hidden_size * spec.intermediate_size
    return spec.num_layers * (attention + feed_forward) + spec.vocab_size * spec.hidden_size
