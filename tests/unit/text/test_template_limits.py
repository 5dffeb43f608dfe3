"""A chat template that loops or allocates costs bounded time and memory, and nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from scheduler_svc.frontend.text.chat import ChatMessage
from scheduler_svc.frontend.text.chat_renderer import ChatRenderer
from scheduler_svc.frontend.text.errors import ChatInvalid, TokenizerFileInvalid
from scheduler_svc.frontend.text.template_process import TemplateLimits

LIMITS = TemplateLimits(limit_s=0.3, wall_limit_s=20.0, max_bytes=128 * 2**20)
HONEST = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
# what a request chooses with its content
WHEN = "{% if messages[0].content == 'bomb' %}"
BOMBS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops inside one operation": "{{ (messages | length + 6) ** (10 ** 8) }}",
    "allocates": "{{ ('x' * 10 ** 10) | length }}",
    "allocates bit by bit": "{% set ns = namespace(t='x' * 1000) %}"
    "{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
    "prints": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
}


@contextmanager
def _renderer(folder: Path, template: str) -> Iterator[ChatRenderer]:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    renderer = ChatRenderer.load(folder, special_tokens={}, limits=LIMITS)
    assert renderer is not None
    try:
        yield renderer
    finally:
        renderer.close()


async def _render(renderer: ChatRenderer, content: str) -> str:
    return (await renderer.render([ChatMessage(role="user", content=content)])).text


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_refused_and_the_next_conversation_is_rendered(
    bomb: str, tmp_path: Path
) -> None:
    with _renderer(tmp_path, f"{WHEN}{BOMBS[bomb]}{{% endif %}}{HONEST}") as renderer:
        for _ in range(3):
            with pytest.raises(ChatInvalid) as caught:
                await _render(renderer, "bomb")
            assert caught.value.field == "messages"
            assert await _render(renderer, "hello") == "[user]hello"


async def test_a_template_that_cannot_be_compiled_is_named_at_the_start(tmp_path: Path) -> None:
    # jinja2 computes constants while it compiles
    with (
        pytest.raises(TokenizerFileInvalid, match=r"the chat template must compile within 0\.3 s"),
        _renderer(tmp_path, "{{ 7 ** (10 ** 8) }}"),
    ):
        pass


async def test_variables_and_special_tokens_arrive_as_they_were_given(tmp_path: Path) -> None:
    template = "{{ depth + 1 }}{{ names | join('-') }}{{ 'yes' if flag else 'no' }}"
    with _renderer(tmp_path, template) as renderer:
        variables = {"depth": 1, "names": ["a", "ö"], "flag": False, "unread": None}
        rendered = await renderer.render(
            [ChatMessage(role="user", content="")], variables=variables
        )
    assert rendered.text == "2a-öno"
    assert rendered.unread_variables == ("unread",)


async def test_nothing_is_left_running(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with _renderer(tmp_path, HONEST) as renderer:
        assert await _render(renderer, "hello") == "[user]hello"
        assert set(psutil.Process().children()) - before
    assert set(psutil.Process().children()) <= before
