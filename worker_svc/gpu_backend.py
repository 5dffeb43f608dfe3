"""The layers' kernels and the attention of a GPU, by the settings. Knows no weight."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from worker_svc.attention.backend import StoredBackend
from worker_svc.attention.choice import AttentionNeeds, AttentionUnavailableError, choose_attention
from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.kernels.support import num_multiprocessors
from worker_svc.layers.fused import FusedBackend
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import ParallelGroup, SingleRank

if TYPE_CHECKING:
    # a worker without a GPU lacks what it needs
    from worker_svc.parallel.peer_memory import PeerMemory

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """How the ranks of one model reach each other."""

    group: ParallelGroup
    peers: "PeerMemory | None" = None
    """Their shared memory, where they have any."""


def choose_backend(
    config: WorkerConfig,
    spec: ModelSpec,
    *,
    ranks: Ranks,
    device: torch.device,
    dtype: torch.dtype,
) -> FusedBackend:
    """What `--attention-backend` says, or the best that runs; raises InvalidConfig."""
    needs = AttentionNeeds(
        capability=torch.cuda.get_device_capability(device),
        dtype=dtype,
        head_dim=spec.head_dim,
        block_size=config.block_size,
    )
    try:
        chosen = choose_attention(config.attention_backend, needs)
    except AttentionUnavailableError as error:
        raise InvalidConfig(str(error)) from error
    _LOGGER.info("attention backend %s: %s", chosen.name, chosen.reason)
    return backend_named(
        chosen.name,
        spec,
        ranks=ranks,
        most_rows=config.max_num_seqs,
        device=device,
        dtype=dtype,
    )


def backend_named(
    name: str,
    spec: ModelSpec,
    *,
    most_rows: int,
    device: torch.device,
    dtype: torch.dtype,
    ranks: Ranks | None = None,
) -> FusedBackend:
    """The backend of a name that `choose_attention` gave, for one rank's heads.

    Without `ranks` for a model on one.
    """
    ranks = ranks or Ranks(SingleRank())
    num_ranks = ranks.group.size
    # a worker without a GPU has neither of these packages
    from worker_svc.execution.triton_layers import TritonLayers  # noqa: PLC0415

    num_heads, num_kv_heads = spec.num_heads // num_ranks, max(1, spec.num_kv_heads // num_ranks)
    attention: StoredBackend
    if name == "fa3":
        from worker_svc.attention.fa3_backend import Fa3Backend, Fa3Heads  # noqa: PLC0415
        from worker_svc.kernels.decode_attention import DecodeScratch  # noqa: PLC0415

        heads = Fa3Heads(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            num_multiprocessors=num_multiprocessors(device),
        )
        scratch = DecodeScratch.for_rows(
            most_rows,
            num_kv_heads=num_kv_heads,
            group=heads.group,
            head_dim=spec.head_dim,
            device=device,
        )
        attention = Fa3Backend(heads, scratch=scratch)
    elif name == "fa2":
        from worker_svc.attention.fa2_backend import Fa2Backend  # noqa: PLC0415

        attention = Fa2Backend()
    else:
        from worker_svc.attention.triton_backend import TritonBackend  # noqa: PLC0415

        attention = TritonBackend.create(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=spec.head_dim,
            most_rows=most_rows,
            device=device,
        )
    return FusedBackend(TritonLayers(ranks.group, peers=ranks.peers), attention)
