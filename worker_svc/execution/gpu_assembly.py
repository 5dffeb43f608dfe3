"""Puts the parts of a GPU runner together. Knows no flag and no file."""

from dataclasses import dataclass

from worker_svc.execution.buckets import decode_buckets, sample_buckets, token_buckets
from worker_svc.execution.gpu_runner import GpuRunner
from worker_svc.execution.graph_device import GraphDevice
from worker_svc.execution.graphs import Graphs
from worker_svc.execution.kv_cache import KVCache
from worker_svc.execution.programs import Programs
from worker_svc.execution.recorded_programs import ProgramBuckets, RecordedPrograms
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.execution.step_layout import StepSizes
from worker_svc.execution.step_memory import StepMemory
from worker_svc.layers.embedding import rows_per_rank
from worker_svc.models.decoder import Decoder
from worker_svc.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """What bounds the steps of a runner."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_tokenizer_ids: int


@dataclass(frozen=True, slots=True, eq=False)
class GpuAssembly:
    """A runner and the programs it runs, to be got ready before the first step."""

    programs: RecordedPrograms
    runner: GpuRunner


def assemble(
    *,
    model: Decoder,
    cache: KVCache,
    group: ParallelGroup,
    device: GraphDevice,
    limits: RunnerLimits,
    uses_graphs: bool,
) -> GpuAssembly:
    """Take the memory of steps; nothing is launched yet."""
    spec, layout = model.spec, cache.layout
    sizes = StepSizes(
        num_slots=limits.max_num_seqs,
        most_tokens=max(limits.max_num_batched_tokens, limits.max_num_seqs),
        blocks_per_slot=-(-model.num_positions // layout.block_size),
        block_size=layout.block_size,
        hidden_size=spec.hidden_size,
        num_positions=model.num_positions,
    )
    programs = Programs(
        model=model,
        cache=cache,
        memory=StepMemory(sizes, device=device.device, dtype=layout.dtype),
        part=VocabularyPart(
            first_id=model.first_vocabulary_id,
            num_ids=rows_per_rank(spec.vocab_size, group),
            num_tokenizer_ids=limits.num_tokenizer_ids,
        ),
        group=group,
    )
    recorded = RecordedPrograms(
        programs,
        graphs=Graphs(device, is_on=uses_graphs),
        buckets=ProgramBuckets(
            decode=decode_buckets(limits.max_num_seqs),
            tokens=token_buckets(sizes.most_tokens),
            samples=sample_buckets(limits.max_num_seqs),
        ),
    )
    runner = GpuRunner(
        device=device,
        programs=recorded,
        num_tokenizer_ids=limits.num_tokenizer_ids,
        vocab_size=spec.vocab_size,
    )
    return GpuAssembly(recorded, runner)
