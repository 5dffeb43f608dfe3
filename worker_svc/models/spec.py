"""What a model is: one frozen record parsed from config.json. Knows no tensor and no weight file.

One decoder serves every supported family, so a config maps to facts (q/k-norm, bias, tied head,
rope), not to a class.
"""

from dataclasses import dataclass
from pathlib import Path

from worker_svc.models.config_reader import ConfigReader
from worker_svc.models.rope_spec import RopeSpec, longest_context, parse_rope

_ARCHITECTURE_OF_TYPE = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_QWEN3_HEAD_DIM = 128
_QWEN_WINDOW_LAYERS = 28
_STORED_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of one model."""

    architecture: str
    """Name of its class in transformers, such as "Qwen3ForCausalLM"."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding; the tokenizer may know fewer ids."""
    norm_epsilon: float
    has_qk_norm: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_tied_head: bool
    rope: RopeSpec
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    """End ids of config.json alone; other files may name more."""
    stored_dtype: str
    """Number format of the weights on disk as config.json states it."""

    @property
    def longest_context(self) -> int:
        """Most tokens, prompt and output together, that the positions support."""
        return longest_context(self.rope, self.max_position_embeddings)


def parse_model_spec(path: Path) -> ModelSpec:
    """Read a config.json as transformers 4 or 5 writes it.

    Raises `ConfigError` naming the file, the field and the rule.
    """
    config = ConfigReader.open(path)
    architecture = _parse_architecture(config)
    _refuse_unsupported(config, architecture)
    is_qwen2 = architecture == "Qwen2ForCausalLM"
    has_attention_bias = not is_qwen2 and config.flag("attention_bias", default=False)
    num_heads = config.count("num_attention_heads")
    return ModelSpec(
        architecture=architecture,
        hidden_size=config.count("hidden_size"),
        intermediate_size=config.count("intermediate_size"),
        num_layers=config.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_parse_num_kv_heads(config, architecture, num_heads),
        head_dim=_parse_head_dim(config, architecture, num_heads),
        vocab_size=config.count("vocab_size"),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        has_qkv_bias=is_qwen2 or has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=architecture == "LlamaForCausalLM" and config.flag("mlp_bias", default=False),
        has_tied_head=config.flag("tie_word_embeddings", default=False),
        rope=parse_rope(config),
        max_position_embeddings=config.count("max_position_embeddings"),
        eos_token_ids=config.ids("eos_token_id"),
        stored_dtype=_parse_stored_dtype(config),
    )


def _parse_architecture(config: ConfigReader) -> str:
    supported = ", ".join(_ARCHITECTURE_OF_TYPE.values())
    names = config.texts("architectures")
    if not names:
        model_type = config.text("model_type")
        if model_type not in _ARCHITECTURE_OF_TYPE:
            config.refuse("model_type", f"{model_type!r} is not supported; {supported} are")
        return _ARCHITECTURE_OF_TYPE[model_type]
    if names[0] not in _ARCHITECTURE_OF_TYPE.values():
        config.refuse("architectures", f"{names[0]} is not supported; {supported} are")
    return names[0]


def _refuse_unsupported(config: ConfigReader, architecture: str) -> None:
    if config.has("quantization_config"):
        config.refuse("quantization_config", "quantized weights are not supported")
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        config.refuse("hidden_act", f"only silu is supported, not {activation!r}")
    if _has_sliding_window(config, architecture):
        config.refuse("use_sliding_window", "sliding-window attention is not supported")
    for kind in config.texts("layer_types"):
        if kind != "full_attention":
            config.refuse("layer_types", f"only full_attention is supported, not {kind!r}")


def _has_sliding_window(config: ConfigReader, architecture: str) -> bool:
    # Llama ignores these fields; Qwen keeps full attention in the first max_window_layers layers
    if architecture == "LlamaForCausalLM" or not config.flag("use_sliding_window", default=False):
        return False
    num_layers = config.count("num_hidden_layers")
    return config.count("max_window_layers", _QWEN_WINDOW_LAYERS) < num_layers


def _parse_num_kv_heads(config: ConfigReader, architecture: str, num_heads: int) -> int:
    # Llama takes its absence as "one for each head"; Qwen's files always state it
    default = num_heads if architecture == "LlamaForCausalLM" else None
    num_kv_heads = config.count("num_key_value_heads", default)
    if num_heads % num_kv_heads:
        rule = f"must divide num_attention_heads {num_heads}, not {num_kv_heads}"
        config.refuse("num_key_value_heads", rule)
    return num_kv_heads


def _parse_head_dim(config: ConfigReader, architecture: str, num_heads: int) -> int:
    if config.has("head_dim"):
        head_dim = config.count("head_dim")
    elif architecture == "Qwen3ForCausalLM":
        head_dim = _QWEN3_HEAD_DIM
    else:
        hidden_size = config.count("hidden_size")
        if hidden_size % num_heads:
            config.refuse("hidden_size", f"must be a multiple of num_attention_heads {num_heads}")
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        config.refuse("head_dim", f"must be even, not {head_dim}")
    return head_dim


def _parse_stored_dtype(config: ConfigReader) -> str:
    field = "dtype" if config.has("dtype") else "torch_dtype"
    name = config.text(field, "float32").removeprefix("torch.")
    if name not in _STORED_DTYPES:
        config.refuse(field, f"{name!r} is not supported; one of {', '.join(_STORED_DTYPES)} is")
    return name
