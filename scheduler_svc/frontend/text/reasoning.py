"""The marks around a model's reasoning, and whether a text ends inside them."""

from __future__ import annotations

OPEN_MARK = "<think>"
CLOSE_MARK = "</think>"
REASONING_MARKS = (OPEN_MARK, CLOSE_MARK)


def opens_reasoning(prompt_end: str) -> bool:
    """Whether a prompt that ends so has opened the reasoning for the model.

    Templates do it with a mark that only white space follows; a mark further back may as well be
    somebody's words.
    """
    return prompt_end.rstrip().endswith(OPEN_MARK)


def leaves_reasoning_open(written: str) -> bool:
    """Whether what an assistant wrote so far ends inside its reasoning."""
    return written.rfind(OPEN_MARK) > written.rfind(CLOSE_MARK)
