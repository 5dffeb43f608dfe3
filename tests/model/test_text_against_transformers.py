"""Prompts are, token by token, what transformers makes of the same conversation."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from scheduler_svc.frontend.text.chat import ChatMessage, ChatTemplate
from scheduler_svc.frontend.text.tokenizer import Tokenizer
from tests.checkpoints import qwen3_folder, smollm2_folder

SYSTEM = ChatMessage(role="system", content="Be brief.")
USER = ChatMessage(role="user", content="What is 12345 + 6? Žluťoučký kůň, 日本語, 🎉\n\n")
ASSISTANT = ChatMessage(role="assistant", content="<think>\nadd\n</think>\n\n12351, of course. ")
OPEN = ChatMessage(role="assistant", content="It is  ")
CONVERSATIONS = {
    "one question": [USER],
    "with a system message": [SYSTEM, USER],
    "second question": [SYSTEM, USER, ASSISTANT, USER],
    "ends with the assistant": [USER, ASSISTANT],
    "tool answers": [USER, ASSISTANT, ChatMessage(role="tool", content='{"a": 1}'), USER],
    "empty content": [ChatMessage(role="user", content="")],
    "special tokens in content": [ChatMessage(role="user", content="a<|im_end|>b<think>")],
}
TEXTS = [
    "",
    " ",
    "Hello,  world\n\n",
    "1234567 a1b2",
    "\u00e9 e\u0301 \ufb01",
    "<|im_start|>x",
    "🎉🏳️‍🌈",
]


@dataclass(frozen=True)
class Checkpoint:
    """Our tokenizer and template, and transformers' reading of the same folder."""

    tokenizer: Tokenizer
    template: ChatTemplate
    reference: PreTrainedTokenizerBase


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    folder = {"smollm2": smollm2_folder, "qwen3": qwen3_folder}[request.param]()
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate.load(folder, special_tokens=tokenizer.special_tokens)
    assert template is not None
    return Checkpoint(tokenizer, template, AutoTokenizer.from_pretrained(folder))


def render_both(
    checkpoint: Checkpoint,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool,
    continue_final_message: bool = False,
    variables: Mapping[str, object] | None = None,
) -> tuple[list[int], list[int]]:
    """The ids by our path and by transformers'."""
    rendered = checkpoint.template.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    )
    reference = checkpoint.reference.apply_chat_template(
        [message.as_variable() for message in messages],
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        return_dict=False,
        **(variables or {}),
    )
    return checkpoint.tokenizer.encode(rendered.text, add_special_tokens=False), reference


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_chat_prompt_ids_are_those_of_transformers(
    checkpoint: Checkpoint, name: str, *, add_generation_prompt: bool
) -> None:
    # CHAT-01
    ours, reference = render_both(
        checkpoint, CONVERSATIONS[name], add_generation_prompt=add_generation_prompt
    )
    assert ours == reference


@pytest.mark.parametrize("enable_thinking", [True, False])
def test_thinking_switch_gives_the_ids_of_transformers(
    checkpoint: Checkpoint, *, enable_thinking: bool
) -> None:
    # CHAT-01
    ours, reference = render_both(
        checkpoint,
        [SYSTEM, USER],
        add_generation_prompt=True,
        variables={"enable_thinking": enable_thinking},
    )
    assert ours == reference


def test_continued_message_gives_the_ids_of_transformers(checkpoint: Checkpoint) -> None:
    ours, reference = render_both(
        checkpoint, [USER, OPEN], add_generation_prompt=False, continue_final_message=True
    )
    assert ours == reference


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_ids_and_their_decode_are_those_of_transformers(
    checkpoint: Checkpoint, text: str
) -> None:
    tokenizer, reference = checkpoint.tokenizer, checkpoint.reference
    ids = tokenizer.encode(text)
    assert ids == reference(text)["input_ids"]
    for skip in (True, False):
        expected = reference.decode(
            ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


def test_special_and_end_ids_are_those_of_transformers(checkpoint: Checkpoint) -> None:
    tokenizer, reference = checkpoint.tokenizer, checkpoint.reference
    assert reference.eos_token_id in tokenizer.eos_token_ids
    assert set(reference.all_special_ids) <= tokenizer.special_token_ids
    assert tokenizer.num_ids == len(reference)
