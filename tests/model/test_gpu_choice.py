"""Which attention a GPU gets, and the words when it cannot have what was asked for."""

from dataclasses import replace

import pytest
import torch

from worker_svc.attention.choice import (
    AttentionNeeds,
    AttentionUnavailableError,
    choose_attention,
)

HOPPER = AttentionNeeds(capability=(9, 0), dtype=torch.bfloat16, head_dim=128, block_size=16)
AMPERE = replace(HOPPER, capability=(8, 0))


def everything(package: str) -> bool:
    assert package in {"flash_attn_3", "flash_attn", "triton"}
    return True


def test_hopper_gets_fa3_and_others_get_triton_with_the_reason() -> None:
    assert choose_attention("auto", HOPPER, has_package=everything).name == "fa3"
    chosen = choose_attention("auto", AMPERE, has_package=everything)
    assert chosen.name == "triton"
    assert "for Hopper GPUs (9.0), this one is 8.0" in chosen.reason
    chosen = choose_attention("auto", HOPPER, has_package=lambda name: name != "flash_attn_3")
    assert chosen.name == "triton"
    assert "pip install tokenspeed-fa3" in chosen.reason


@pytest.mark.parametrize("name", ["fa3", "triton", "fa2"])
def test_what_is_asked_for_is_taken_when_it_runs(name: str) -> None:
    needs = replace(HOPPER, block_size=256)
    assert choose_attention(name, needs, has_package=everything).name == name


@pytest.mark.parametrize(
    ("name", "needs", "missing", "words"),
    [
        ("fa3", AMPERE, "", "--attention-backend fa3 cannot run here: it is for Hopper"),
        ("fa3", replace(HOPPER, dtype=torch.float32), "", "needs bfloat16 or float16, not float32"),
        ("fa3", replace(HOPPER, head_dim=80), "", "no kernel for heads of 80"),
        ("fa3", HOPPER, "flash_attn_3", "the package flash_attn_3 is not installed"),
        ("fa2", HOPPER, "", "--block-size must be a multiple of 256, not 16"),
        ("fa2", replace(HOPPER, block_size=256), "flash_attn", "flash-attn is not installed"),
        ("triton", HOPPER, "triton", "the package triton is not installed"),
        ("triton", replace(HOPPER, capability=(7, 5)), "", r"from Ampere \(8.0\) on is needed"),
        ("torch", HOPPER, "", "--attention-backend torch cannot run here: .* CPUs only"),
        ("auto", HOPPER, "triton", "--device cuda: the package triton is not installed"),
    ],
)
def test_an_obstacle_is_named_in_one_line(
    name: str, needs: AttentionNeeds, missing: str, words: str
) -> None:
    with pytest.raises(AttentionUnavailableError, match=words) as caught:
        choose_attention(name, needs, has_package=lambda package: package != missing)
    assert "\n" not in str(caught.value)
