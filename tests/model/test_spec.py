"""config.json to spec: every known spelling, and one clear refusal for what is not supported."""

import json
from pathlib import Path

import pytest

from tests.fakes.checkpoints import TinyModel, config_of
from worker_svc.models.errors import ConfigError
from worker_svc.models.rope_spec import DefaultRope, LinearRope, Llama3Rope, YarnRope
from worker_svc.models.spec import ModelSpec, parse_model_spec

YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def parse(folder: Path, config: object) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return parse_model_spec(path)


def tiny(**changes: object) -> dict[str, object]:
    config = {**config_of(TinyModel(family="llama")), **changes}
    return {name: value for name, value in config.items() if value != "absent"}


def test_qwen3_reads_head_dim_instead_of_dividing(tmp_path: Path) -> None:
    # scenario LD-06: the published shape of Qwen3-0.6B, as transformers 4 wrote it
    spec = parse(
        tmp_path,
        {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "max_position_embeddings": 40960,
            "max_window_layers": 28,
            "model_type": "qwen3",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
    )
    assert spec == ModelSpec(
        architecture="Qwen3ForCausalLM",
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151936,
        norm_epsilon=1e-6,
        has_qk_norm=True,
        has_qkv_bias=False,
        has_output_bias=False,
        has_mlp_bias=False,
        has_tied_head=True,
        rope=DefaultRope(1e6),
        max_position_embeddings=40960,
        eos_token_ids=(151645,),
        stored_dtype="bfloat16",
    )
    assert spec.longest_context == 40960


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_both_spellings_of_transformers_give_one_spec(tmp_path: Path, family: str) -> None:
    rope = {"rope_type": "yarn", **YARN}
    specs = [
        parse(tmp_path, config_of(TinyModel(family=family, spelling=spelling, rope=rope)))  # type: ignore[arg-type]  # literals
        for spelling in (4, 5)
    ]
    assert specs[0] == specs[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}},
        {"rope_parameters": {"type": "yarn", "rope_theta": 5e5, **YARN}},
        {"rope_parameters": {"rope_type": "yarn", **YARN}, "rope_theta": 5e5},
        {"rope_parameters": "absent", "rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 5e5},
        {"rope_parameters": None, "rope_scaling": {"rope_type": "yarn", **YARN}, "rope_theta": 5e5},
        {
            "rope_parameters": "absent",
            "rope_scaling": {"rope_type": "yarn", "type": "yarn", **YARN},
            "rope_theta": 500000,
        },
    ],
)
def test_every_spelling_of_rope_scaling_gives_one_rope(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    # scenario LD-08
    expected = YarnRope(
        theta=5e5,
        factor=4.0,
        original_max_positions=128,
        fast_rotations=32.0,
        slow_rotations=1.0,
        rounds_range=True,
        magnitude=1.1386294361119891,
    )
    assert parse(tmp_path, tiny(**changes)).rope == expected


def test_longest_context_grows_with_scaling_where_the_file_states_the_native_one(
    tmp_path: Path,
) -> None:
    def with_rope(**rope: object) -> ModelSpec:
        return parse(tmp_path, tiny(rope_parameters=rope))

    linear = with_rope(rope_type="linear", factor=2.0)
    assert (linear.rope, linear.longest_context) == (LinearRope(10_000.0, 2.0), 1024)
    assert with_rope(rope_type="yarn", factor=4.0).longest_context == 2048
    llama3 = with_rope(rope_type="llama3", **LLAMA3)
    assert llama3.rope == Llama3Rope(10_000.0, 8.0, 1.0, 4.0, 512)
    assert llama3.longest_context == 512


@pytest.mark.parametrize(
    ("value", "expected"), [(7, (7,)), ([7, 8], (7, 8)), (None, ()), ("absent", ())]
)
def test_end_ids_may_be_one_or_many(
    tmp_path: Path, value: object, expected: tuple[int, ...]
) -> None:
    # scenario EOS-01
    assert parse(tmp_path, tiny(eos_token_id=value)).eos_token_ids == expected


def test_a_window_that_no_layer_uses_is_no_window(tmp_path: Path) -> None:
    config = tiny(architectures=["Qwen2ForCausalLM"], use_sliding_window=True, max_window_layers=2)
    assert parse(tmp_path, config).num_layers == 2


REFUSALS: list[tuple[dict[str, object], str, str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, "architectures", "GPT2LMHeadModel"),
    ({"architectures": None, "model_type": "gpt2"}, "model_type", "gpt2"),
    ({"quantization_config": {"bits": 4}}, "quantization_config", "quantized"),
    ({"hidden_act": "gelu"}, "hidden_act", "silu"),
    (
        {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "max_window_layers": 1},
        "use_sliding_window",
        "sliding",
    ),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", "full_attention"),
    ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type", "longrope"),
    (
        {"rope_scaling": {"type": "dynamic"}, "rope_parameters": None},
        "rope_scaling.type",
        "dynamic",
    ),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "beta": 1.0}},
        "rope_parameters.beta",
        "not understood",
    ),
    ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor", "required"),
    ({"rope_parameters": {"rope_type": "yarn", "type": "linear"}}, "rope_parameters.type", "yarn"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling", "rope_parameters"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor",
        "only 1",
    ),
    (
        {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
        "rope_parameters.low_freq_factor",
        "below",
    ),
    ({"dtype": "float8_e4m3fn"}, "dtype", "float8_e4m3fn"),
    ({"vocab_size": "absent"}, "vocab_size", "required"),
    ({"max_position_embeddings": "absent"}, "max_position_embeddings", "required"),
    ({"num_hidden_layers": 0}, "num_hidden_layers", "at least 1"),
    ({"hidden_size": 48.5}, "hidden_size", "whole number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads", "divide"),
    ({"head_dim": 15}, "head_dim", "even"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps", "above 0"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings", "true or false"),
    ({"eos_token_id": [1, -2]}, "eos_token_id", "token id"),
]


@pytest.mark.parametrize(("changes", "field", "words"), REFUSALS)
def test_what_is_not_supported_is_refused_by_field(
    tmp_path: Path, changes: dict[str, object], field: str, words: str
) -> None:
    # scenarios Q3-03, LD-08
    with pytest.raises(ConfigError) as refusal:
        parse(tmp_path, tiny(**changes))
    assert refusal.value.field == field
    assert words in refusal.value.rule
    assert str(tmp_path / "config.json") in str(refusal.value)


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "\udcff"])
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"config\.json: file:"):
        parse_model_spec(path)
