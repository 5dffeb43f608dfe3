"""The layers' kernels on GPUs: this project's own, in Triton.

Triton must be installed: check `worker_svc.kernels.support.require_triton` before importing this.
"""

import torch

from worker_svc.attention.backend import LayerCache
from worker_svc.kernels.activation import silu_and_mul
from worker_svc.kernels.norm import add_rms_norm, rms_norm
from worker_svc.kernels.rotate_and_store import QKNorm, RotaryTable, norm_rotate_store
from worker_svc.layers.fused import HeadNorms, Turns
from worker_svc.parallel.group import ParallelGroup
from worker_svc.parallel.peer_memory import PeerMemory


class TritonLayers:
    """`LayerKernels` by Triton; sums over ranks too, where the ranks share memory."""

    def __init__(self, group: ParallelGroup, *, peers: PeerMemory | None = None) -> None:
        """Without `peers` the group sums everything."""
        self._group = group
        self._peers = peers

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, *, epsilon: float) -> torch.Tensor:
        """[N, H] -> [N, H]."""
        return rms_norm(x, weight, epsilon=epsilon)

    def sum_add_rms_norm(
        self, part: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of (sum over ranks of part) + residual, and that sum: [N, H] each."""
        if self._peers is not None and self._peers.takes(part):
            return self._peers.sum_add_rms_norm(part, residual, weight, epsilon=epsilon)
        return add_rms_norm(self._group.all_reduce(part), residual, weight, epsilon=epsilon)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2F] -> [N, F]."""
        return silu_and_mul(x)

    def finish_heads(
        self,
        heads: torch.Tensor,
        *,
        norms: HeadNorms | None,
        turns: Turns,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: LayerCache,
    ) -> torch.Tensor:
        """Norm and turn the qkv product [N, A + 2K, D], store k and v; return q [N, A, D]."""
        norm = None
        if norms is not None:
            norm = QKNorm(norms.query_weight, norms.key_weight, norms.epsilon)
        return norm_rotate_store(
            heads,
            norm=norm,
            table=RotaryTable(turns.cosine, turns.sine),
            positions=positions,
            keys=cache.keys,
            values=cache.values,
            slot_mapping=slot_mapping,
        )
