"""Chat templates: where they are found, what they see, what a conversation may not do."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler_svc.frontend.text.chat import ChatMessage, ChatTemplate
from scheduler_svc.frontend.text.errors import ChatInvalid, TokenizerFileInvalid
from scheduler_svc.frontend.text.tokenizer import Tokenizer

HELLO = [ChatMessage(role="user", content="Hello")]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def load(folder: Path, template: object, *, max_characters: int = 10_000) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    loaded = ChatTemplate.load(folder, special_tokens={}, max_characters=max_characters)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="session")
def qwen3_chat(qwen3_dir: Path, qwen3: Tokenizer) -> ChatTemplate:
    loaded = ChatTemplate.load(qwen3_dir, special_tokens=qwen3.special_tokens)
    assert loaded is not None
    return loaded


def test_smollm2_conversation_gets_its_default_system_message(smollm2_dir: Path) -> None:
    template = ChatTemplate.load(smollm2_dir, special_tokens={})
    assert template is not None
    assert template.render(HELLO).text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("variables", "ending"),
    [
        ({}, "<|im_start|>assistant\n"),
        ({"enable_thinking": True}, "<|im_start|>assistant\n"),
        ({"enable_thinking": False}, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ],
)
def test_qwen3_thinking_switch_adds_an_empty_thought_to_the_prompt(
    qwen3_chat: ChatTemplate, variables: dict[str, object], ending: str
) -> None:
    # CHAT-01
    rendered = qwen3_chat.render(HELLO, variables=variables)
    assert rendered.text == f"<|im_start|>user\nHello<|im_end|>\n{ending}"
    assert rendered.unread_variables == ()


def test_variables_the_template_does_not_read_are_reported(
    qwen3_chat: ChatTemplate, tmp_path: Path
) -> None:
    # CHAT-03
    given = {"enable_thinking": False, "thinking_budget": 5, "another": None}
    unread = qwen3_chat.render(HELLO, variables=given).unread_variables
    assert unread == ("another", "thinking_budget")
    plain = load(tmp_path, PLAIN)
    assert plain.render(HELLO, variables=given).unread_variables == tuple(sorted(given))


def test_variable_that_the_template_only_gives_a_default_is_read(tmp_path: Path) -> None:
    template = load(tmp_path, "{% set tone = tone | default('calm') %}{{ tone }}")
    assert template.render(HELLO, variables={"tone": "loud"}).text == "loud"
    assert template.render(HELLO, variables={"tone": "loud"}).unread_variables == ()
    assert template.render(HELLO).text == "calm"


def test_folder_without_a_template_has_none(tmp_path: Path) -> None:
    assert ChatTemplate.load(tmp_path, special_tokens={}) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert ChatTemplate.load(tmp_path, special_tokens={}) is None


def test_template_file_wins_over_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load(tmp_path, "from the config").render(HELLO).text == "from the file"


def test_default_of_named_templates_is_used(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}]
    assert load(tmp_path, named).render(HELLO).text == "plain"


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        (5, "chat_template must be a string"),
        ([{"name": "rag", "template": "x"}], "an entry named 'default'"),
        ([], "an entry named 'default'"),
        ([{"name": "default"}], "chat_template must be a string"),
        ("{% for m in messages %}\n{{ m. }}", r"must be valid: .*line 2"),
        ("{{ x | nofilter }}", "must be valid: No filter named"),
    ],
)
def test_unusable_template_is_refused_by_file_and_rule(
    tmp_path: Path, template: object, rule: str
) -> None:
    with pytest.raises(TokenizerFileInvalid, match=rf"tokenizer_config\.json: .*{rule}"):
        load(tmp_path, template)


def test_template_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TokenizerFileInvalid, match=r"chat_template\.jinja: cannot be read"):
        ChatTemplate.load(tmp_path, special_tokens={})


def test_named_tokens_are_variables_that_a_request_may_replace(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}|")
    template = ChatTemplate.load(tmp_path, special_tokens={"bos_token": "<s>"})
    assert template is not None
    assert template.render(HELLO).text == "<s>|"
    assert template.render(HELLO, variables={"bos_token": ""}).text == "|"


def test_environment_has_what_published_templates_use(tmp_path: Path) -> None:
    template = load(
        tmp_path,
        "{%- for m in messages %}\n"
        "    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {% generation %}\n"
        "{{ m.content }}{% endgeneration %}\n"
        "{%- endfor %}\n"
        "{{ {'ž': '<b>'} | tojson }} {{ [1] | tojson(indent=1) }} {{ strftime_now('%Y') }}"
        "{{ tools is none }}{{ documents is none }}",
    )
    year = datetime.now(UTC).astimezone().year
    text = template.render([*HELLO, *HELLO]).text
    assert text == f'Hello{{"ž": "<b>"}} [\n 1\n] {year}TrueTrue'


def test_generation_tag_leaks_no_variables(tmp_path: Path) -> None:
    template = load(tmp_path, "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}")
    assert template.render(HELLO).text == "1"


def test_prompt_for_the_answer_is_optional(qwen3_chat: ChatTemplate) -> None:
    text = qwen3_chat.render(HELLO, add_generation_prompt=False).text
    assert text == "<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize("content", ["Sure, ", "Sure,", "  Sure\n", "Sure <|im_end|>"])
def test_final_message_is_left_open(tmp_path: Path, content: str) -> None:
    messages = [*HELLO, ChatMessage(role="assistant", content=content)]
    kept = load(tmp_path, PLAIN + "<end>").render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert kept.text == f"[user]Hello[assistant]{content}"
    trimming = load(tmp_path, PLAIN.replace("m.content", "m.content | trim") + "<end>").render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert trimming.text == f"[user]Hello[assistant]{content.strip()}"


def test_final_message_that_the_template_drops_cannot_be_continued(tmp_path: Path) -> None:
    with pytest.raises(ChatInvalid, match=r"continue_final_message: .*does not keep the end"):
        load(tmp_path, "{{ messages[0].role }}").render(
            HELLO, add_generation_prompt=False, continue_final_message=True
        )


def test_contradicting_flags_are_refused_by_field(tmp_path: Path) -> None:
    with pytest.raises(ChatInvalid, match=r"^continue_final_message: excludes") as caught:
        load(tmp_path, PLAIN).render(HELLO, continue_final_message=True)
    assert caught.value.field == "continue_final_message"


def test_empty_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChatInvalid, match=r"^messages: at least one"):
        load(tmp_path, PLAIN).render([])


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tools", "documents"])
def test_variables_with_fields_of_their_own_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ChatInvalid) as caught:
        load(tmp_path, PLAIN).render(HELLO, variables={name: []})
    assert caught.value.field == f"template_kwargs.{name}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses them: roles must alternate"),
        ("{{ messages[0].nothing.more }}", "refuses them: .*nothing"),
        ("{{ ''.__class__.__mro__ }}", "refuses them: .*unsafe"),
        ("{{ messages.append(1) }}", "refuses them: .*'append'.*unsafe"),
        ("{% include 'other' %}", "refuses them|fails on them"),
        ("{{ messages[0].content + 1 }}", "fails on them: TypeError"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "fails on them: OverflowError"),
    ],
)
def test_failing_template_is_an_error_of_the_request_that_says_why(
    tmp_path: Path, template: str, reason: str
) -> None:
    with pytest.raises(ChatInvalid, match=reason) as caught:
        load(tmp_path, template).render(HELLO)
    assert caught.value.field == "messages"


def test_endless_template_is_cut_off_at_the_size_limit(tmp_path: Path) -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    with pytest.raises(ChatInvalid, match="at most 5000 characters"):
        load(tmp_path, endless, max_characters=5000).render(HELLO)
