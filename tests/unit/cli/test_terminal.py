"""What the command draws: speeds and progress, with a clock that the test moves."""

import io
from contextlib import nullcontext
from typing import Any

import pytest

import octavo
from octavo.cli.answer import Stopwatch, print_answer
from octavo.progress_display import PlainDisplay, RichDisplay, display_progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_rate_counts_tokens_after_the_first_chunk() -> None:
    clock = Clock()
    watch = Stopwatch(clock=clock)
    for moment, num_tokens in ((0.5, 2), (0.6, 0), (1.0, 3), (1.5, 5)):
        clock.now = moment
        watch.note(num_tokens)
    clock.now = 9.0
    assert watch.text() == "first token after 0.50 s, 8.0 tokens/s, 10 tokens"


def test_one_chunk_has_no_rate() -> None:
    watch = Stopwatch(clock=Clock())
    assert watch.text() == "no token came"
    watch.note(1)
    assert watch.text() == "first token after 0.00 s, 1 token"


def test_plain_progress_is_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    display = PlainDisplay(stream, clock=clock)
    for second in range(12):
        clock.now = float(second)
        display.bytes_done("Downloading", second * 10_000_000, 110_000_000)
    display.bytes_done("Downloading", 110_000_000, 110_000_000)
    display.line("Starting", "")
    display.line("Starting", "too soon")
    clock.now += 5
    display.line("Starting", "loading")
    assert stream.getvalue().splitlines() == [
        "Downloading: 0 of 110 MB",
        "Downloading: 50 of 110 MB",
        "Downloading: 100 of 110 MB",
        "Downloading: 110 of 110 MB",
        "Starting ...",
        "Starting: loading",
    ]


def test_a_terminal_gets_a_bar_and_nothing_stays() -> None:
    terminal = Terminal()
    with display_progress(to=terminal) as display:
        assert isinstance(display, RichDisplay)
        display.bytes_done("Downloading", 1_000_000, 2_000_000)
        display.line("Starting", "loading [weights]")
    assert "Downloading" in terminal.getvalue()
    assert "loading [weights]" in terminal.getvalue()


def test_a_terminal_without_rich_and_a_file_get_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with display_progress(to=io.StringIO()) as display:
        assert isinstance(display, PlainDisplay)
    monkeypatch.setattr("octavo.progress_display.find_spec", lambda _: None)
    with display_progress(to=Terminal()) as display:
        assert isinstance(display, PlainDisplay)


class Said(nullcontext[None]):
    """A stream of these deltas."""

    def __init__(self, *deltas: tuple[str, str]) -> None:
        super().__init__()
        self._deltas = deltas

    def __iter__(self) -> Any:
        for reasoning, text in self._deltas:
            yield octavo.Delta(
                index=0,
                text=text,
                token_ids=(1,),
                first_token_index=0,
                finish=None,
                usage=octavo.Usage(),
                reasoning=reasoning,
            )

    def partial(self) -> str:
        return "whole"


@pytest.mark.parametrize(
    ("stderr", "beside"),
    [
        (io.StringIO(), "so it is\n"),
        (Terminal(), "\033[2mso \033[0m\033[2mit is\033[0m\033[2m\n\033[0m"),
    ],
)
def test_reasoning_is_shown_beside_the_answer_dim_on_a_terminal(
    stderr: io.StringIO, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("sys.stderr", stderr)
    said: Any = Said(("so ", ""), ("it is", "Ye"), ("", "s"))
    assert print_answer(said, watch=Stopwatch(clock=Clock())) == "whole"  # type: ignore[comparison-overlap]
    assert stdout.getvalue() == "Yes\n"
    assert stderr.getvalue() == beside
