"""Prompts: cut from either end on request, conversations with tools, every rule named at once."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer, processors

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.blob import read_blob
from scheduler_svc.frontend.model import ServedModel, load_served_model
from scheduler_svc.frontend.prompt import EncodedPrompt, PromptEncoder
from scheduler_svc.frontend.truncation import Cut
from scheduler_svc.frontend.violations import Violations
from tests.fakes.byte_tokenizer import END_OF_TEXT_ID, START_ID
from tests.unit.frontend.frontend_service import write_model
from tests.unit.frontend.parsing import LIMITS, SameThread, parse, violations_of

LEFT, RIGHT = api.TRUNCATION_SIDE_LEFT, api.TRUNCATION_SIDE_RIGHT
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
    "{{ m.tool_call_id }}{{ m.name }}{{ m.reasoning_content }}\n{% endfor %}"
    "{{ tools | tojson if tools }}{{ documents | tojson if documents }}"
)


def encode(model: ServedModel, prompt: api.Prompt) -> EncodedPrompt:
    violations = Violations()
    encoder = PromptEncoder(model, executor=SameThread())
    encoded = asyncio.run(
        encoder.encode(prompt, field="prompt", limits=LIMITS, violations=violations)
    )
    violations.raise_if_any()
    return encoded


def cut(max_tokens: int | None = None, side: int = 0) -> api.Truncation:
    return api.Truncation(max_tokens=max_tokens, side=side)  # type: ignore[arg-type]


def text_of(model: ServedModel, encoded: EncodedPrompt) -> str:
    return model.tokenizer.decode(encoded.token_ids, skip_special_tokens=False)


def closed_after(model: ServedModel) -> Iterator[ServedModel]:
    yield model
    assert model.chat_template is not None
    model.chat_template.close()


@pytest.fixture(scope="module")
def bracketed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """A model whose tokenizer puts a token before every text and one behind it."""
    folder = tmp_path_factory.mktemp("bracketed")
    write_model(folder)
    path = str(folder / "tokenizer.json")
    backend = Tokenizer.from_file(path)
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|endoftext|>",
        special_tokens=[("<|im_start|>", START_ID), ("<|endoftext|>", END_OF_TEXT_ID)],
    )
    backend.save(path)
    yield from closed_after(load_served_model(folder, name="bracketed"))


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModel]:
    """A model whose template says all that it is given."""
    folder = tmp_path_factory.mktemp("talkative")
    write_model(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    yield from closed_after(load_served_model(folder, name="talkative"))


@pytest.mark.parametrize(
    ("truncation", "kept", "num_cut"),
    [
        (cut(4), "wxyz", 2),
        (cut(4, LEFT), "wxyz", 2),
        (cut(4, RIGHT), "uvwx", 2),
        (cut(1), "z", 5),
        (cut(6), "uvwxyz", 0),
        (cut(199, RIGHT), "uvwxyz", 0),
        (cut(), "uvwxyz", 0),
    ],
)
def test_text_and_ids_are_cut_from_the_side_that_is_asked_for(
    model: ServedModel, truncation: api.Truncation, kept: str, num_cut: int
) -> None:
    ids = model.tokenizer.encode("uvwxyz")
    for prompt in (
        api.Prompt(text="uvwxyz", truncation=truncation),
        api.Prompt(token_ids=api.TokenIds(ids=ids), truncation=truncation),
    ):
        encoded = encode(model, prompt)
        assert (text_of(model, encoded), encoded.num_truncated) == (kept, num_cut)


def test_by_default_a_prompt_is_cut_to_leave_room_for_one_token(model: ServedModel) -> None:
    long = "x" * 100_000  # more than is tokenized of a prompt that is not cut
    for prompt in (
        api.Prompt(text=long, truncation=cut()),
        api.Prompt(token_ids=api.TokenIds(ids=[5] * 100_000), truncation=cut()),
        api.Prompt(
            chat=api.Chat(messages=[api.ChatMessage(role="user", content=long)]), truncation=cut()
        ),
    ):
        encoded = encode(model, prompt)
        assert len(encoded.token_ids) == LIMITS.max_sequence_tokens - 1
        assert encoded.num_truncated >= 100_000 - LIMITS.max_sequence_tokens


def test_special_tokens_that_the_tokenizer_adds_stay(bracketed: ServedModel) -> None:
    for side, middle in ((LEFT, "yz"), (RIGHT, "uv")):
        encoded = encode(bracketed, api.Prompt(text="uvwxyz", truncation=cut(4, side)))
        assert text_of(bracketed, encoded) == f"<|im_start|>{middle}<|endoftext|>"
        assert encoded.num_truncated == 4
    one = encode(bracketed, api.Prompt(text="uvwxyz", truncation=cut(1)))
    assert text_of(bracketed, one) == "z"


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 9])
def test_a_cut_keeps_exactly_as_many_as_allowed(max_tokens: int, *, is_left: bool) -> None:
    ids = array("i", range(10))
    for num_before in range(3):
        for num_after in range(3):
            kept = Cut(max_tokens=max_tokens, is_left=is_left).apply(
                ids, num_before=num_before, num_after=num_after
            )
            assert len(kept) == max_tokens
            assert list(kept) == sorted(set(kept))


def test_a_cut_is_reported_to_the_stream_and_ids_that_are_cut_off_are_checked(
    model: ServedModel,
) -> None:
    prompt = api.Prompt(text="uvwxyz", truncation=cut(2))
    parsed = parse(model, api.Generation(prompt=prompt))
    assert read_blob(parsed.blob).start.num_truncated_tokens == 4
    bad = api.Prompt(token_ids=api.TokenIds(ids=[-1, 5, 5]), truncation=cut(2))
    assert list(violations_of(model, api.Generation(prompt=bad))) == [
        "generation.prompt.token_ids.ids[0]"
    ]


def test_a_conversation_reaches_the_template_whole(talkative: ServedModel) -> None:
    chat = api.Chat(
        messages=[
            api.ChatMessage(role="user", content="hi", name="Ann"),
            api.ChatMessage(
                role="assistant",
                reasoning="hm",
                tool_calls=[
                    api.ToolCall(id="c1", name="f", arguments_json='{"b": 1, "a": {"ž": null}}'),
                    api.ToolCall(name="g"),
                ],
            ),
            api.ChatMessage(role="tool", content="4", tool_call_id="c1", name="f"),
        ],
        tools=[
            api.Tool(name="f", description="adds", parameters_json='{"z": {}, "type": "object"}'),
            api.Tool(name="g"),
        ],
        documents=[api.Document(title="T", text="D")],
    )
    encoded = encode(talkative, api.Prompt(chat=chat))
    first, second, third, last = encoded.text.split("\n")
    assert first == "user:hiAnn"
    assert second.startswith("assistant:[")
    calls = json.loads(second[len("assistant:") : -len("hm")])
    assert second.endswith("]hm")
    assert calls == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": {"b": 1, "a": {"ž": None}}},
        },
        {"type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    assert list(calls[0]["function"]["arguments"]) == ["b", "a"]
    assert third == "tool:4c1f"
    assert last.endswith('[{"title": "T", "text": "D"}]')
    assert last.startswith(
        '[{"type": "function", "function": {"name": "f", "description": "adds", '
        '"parameters": {"z": {}, "type": "object"}}}'
    )


def test_what_the_template_does_not_read_is_reported(model: ServedModel) -> None:
    chat = api.Chat(
        messages=[api.ChatMessage(role="user", content="x")],
        tools=[api.Tool(name="f")],
        documents=[api.Document(text="d")],
    )
    chat.template_kwargs["enable_thinking"] = False
    warnings = encode(model, api.Prompt(chat=chat)).warnings
    assert [w.rsplit(" ", 1)[1] for w in warnings] == [
        "'documents'",
        "'enable_thinking'",
        "'tools'",
    ]


def test_every_rule_that_a_conversation_breaks_is_named_at_once(model: ServedModel) -> None:
    chat = api.Chat(
        messages=[
            api.ChatMessage(content="no role"),
            api.ChatMessage(
                role="assistant", tool_calls=[api.ToolCall(arguments_json="[1]"), api.ToolCall()]
            ),
        ],
        add_generation_prompt=True,
        continue_final_message=True,
        tools=[
            api.Tool(name="no spaces"),
            api.Tool(name="x" * 65),
            api.Tool(name="f", parameters_json='{"x": NaN}'),
            api.Tool(name="f", parameters_json="[" * 100_000),
        ],
    )
    chat.template_kwargs["messages"] = "mine"
    chat.template_kwargs["number"] = float("inf")
    wanted = api.Generation(
        prompt=api.Prompt(chat=chat, truncation=api.Truncation(max_tokens=0, side=9)),  # type: ignore[arg-type]
        sampling=api.SamplingParams(n=0),
    )
    prompt = "generation.prompt"
    assert set(violations_of(model, wanted)) == {
        "generation.sampling.n",
        f"{prompt}.truncation.max_tokens",
        f"{prompt}.truncation.side",
        f"{prompt}.chat.messages[0].role",
        f"{prompt}.chat.messages[1].tool_calls[0].name",
        f"{prompt}.chat.messages[1].tool_calls[0].arguments_json",
        f"{prompt}.chat.messages[1].tool_calls[1].name",
        f"{prompt}.chat.continue_final_message",
        f"{prompt}.chat.tools[0].name",
        f"{prompt}.chat.tools[1].name",
        f"{prompt}.chat.tools[2].parameters_json",
        f"{prompt}.chat.tools[3].parameters_json",
        f"{prompt}.chat.template_kwargs",
    }


def test_too_many_tools_and_reserved_variables_are_refused(model: ServedModel) -> None:
    chat = api.Chat(messages=[api.ChatMessage(role="user")], tools=[api.Tool(name="f")] * 129)
    chat.template_kwargs["tools"] = "mine"
    found = violations_of(model, api.Generation(prompt=api.Prompt(chat=chat)))
    assert set(found) == {
        "generation.prompt.chat.tools",
        "generation.prompt.chat.template_kwargs.tools",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [("<think>half a", True), ("<think>a</think>b", False), ("plain", False)],
)
def test_a_continued_message_may_begin_inside_its_reasoning(
    model: ServedModel, content: str, *, expected: bool
) -> None:
    chat = api.Chat(
        messages=[api.ChatMessage(role="assistant", content=content)], continue_final_message=True
    )
    parsed = parse(model, api.Generation(prompt=api.Prompt(chat=chat)))
    assert parsed.text_rules.starts_in_reasoning is expected
