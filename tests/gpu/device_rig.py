"""Models on a GPU with a runner each, and the same weights in transformers."""

import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.fakes.slot_tables import SlotTables
from worker_svc.batch_step import BatchStep, SampledRows
from worker_svc.execution.gpu_assembly import RunnerLimits, assemble
from worker_svc.execution.graph_device import CudaDevice
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.gpu_backend import backend_named
from worker_svc.models.decoder import Decoder
from worker_svc.models.rope_spec import DefaultRope
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import SingleRank

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
GPU = torch.device("cuda", 0)


def qwen3_spec(
    *,
    layers: int = 2,
    hidden: int = 256,
    heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 128,
    inner: int = 384,
    vocab_size: int = 1000,
    tied: bool = False,
) -> ModelSpec:
    """A small model of Qwen3's kind."""
    return ModelSpec(
        architecture="Qwen3ForCausalLM",
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        norm_epsilon=1e-6,
        has_qk_norm=True,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_tied_head=tied,
        rope=DefaultRope(theta=1e6),
        max_position_embeddings=4096,
        eos_token_ids=(0,),
        stored_dtype="bfloat16",
    )


def transformers_model(spec: ModelSpec, dtype: torch.dtype, *, seed: int = 0) -> torch.nn.Module:
    """Random weights of these shapes on the GPU, bfloat16 numbers whatever the dtype."""
    config = Qwen3Config(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.max_position_embeddings,
        rms_norm_eps=spec.norm_epsilon,
        tie_word_embeddings=spec.has_tied_head,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        attn_implementation="eager",
    )
    with torch.device(GPU):
        model: torch.nn.Module = Qwen3ForCausalLM(config)
    torch.manual_seed(seed)
    # with the usual small weights attention hardly matters; with these every part counts
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.normal_(1.0, 0.1)
        elif "embed" in name:
            weight.data.normal_(0.0, 1.0 / spec.hidden_size**0.5)
        else:
            weight.data.normal_(0.0, 1.2 / weight.shape[1] ** 0.5)
        # parameters alone: the frequencies of positions stay float32
        weight.data = weight.data.to(DTYPE).to(dtype)
    return model.eval()


@torch.inference_mode()
def reference_logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Float32 [tokens, vocabulary] after each token."""
    logits: torch.Tensor = model(torch.tensor([tokens], device=GPU)).logits[0]
    return logits.float()


def decoder_like(
    model: torch.nn.Module,
    spec: ModelSpec,
    *,
    backend: str,
    most_rows: int,
    num_positions: int = 1024,
) -> Decoder:
    """Our decoder with the weights of transformers' model."""
    fused = backend_named(backend, spec, most_rows=most_rows, device=GPU, dtype=DTYPE)
    decoder = Decoder(
        spec,
        group=SingleRank(),
        backend=fused,
        dtype=DTYPE,
        device=GPU,
        num_positions=num_positions,
    )
    weights = dict(model.named_parameters())
    with torch.inference_mode():
        for shard in decoder.shards():
            shard.destination.copy_(weights[shard.name])
    return decoder


class GpuRig:
    """A decoder with a cache, step memory and a runner."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        num_blocks: int,
        most_rows: int,
        most_tokens: int,
        uses_graphs: bool = True,
    ) -> None:
        spec = decoder.spec
        layout = KVLayout.of_model(
            spec, num_blocks=num_blocks, block_size=BLOCK_SIZE, num_ranks=1, dtype=DTYPE
        )
        self.device = CudaDevice(0)
        self.device.take_over()
        self.decoder = decoder
        self.cache = KVCache.allocate(layout, device=GPU)
        self.tables = SlotTables(
            num_slots=most_rows,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            blocks_per_slot=decoder.num_positions // BLOCK_SIZE,
        )
        self.assembly = assemble(
            model=decoder,
            cache=self.cache,
            group=SingleRank(),
            device=self.device,
            limits=RunnerLimits(most_rows, most_tokens, spec.vocab_size),
            uses_graphs=uses_graphs,
        )
        self.assembly.programs.get_ready()
        self.device.finish()

    def run(self, step: BatchStep) -> SampledRows:
        """The step's outcome."""
        self.assembly.runner.launch(step, received_ns=time.monotonic_ns())
        return self.assembly.runner.collect().rows

    @torch.inference_mode()
    def logits(self, num_tokens: int) -> torch.Tensor:
        """Float32 [tokens, vocabulary] of the last step that was no decode step."""
        hidden = self.assembly.programs.memory.hidden
        return self.decoder.logits_at(hidden, torch.arange(num_tokens, device=GPU)).float()
