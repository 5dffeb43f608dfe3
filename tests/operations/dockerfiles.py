"""Reads a Dockerfile's instructions. Knows no more of their syntax than ours use."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction: its word, and the rest with continued lines joined."""

    word: str
    rest: str

    def words(self) -> list[str]:
        """The rest as a list: JSON where it is one, else as a shell splits it."""
        return list(json.loads(self.rest)) if self.rest.startswith("[") else shlex.split(self.rest)


def instructions(path: Path) -> list[Instruction]:
    """All instructions of a file."""
    joined = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [Instruction(*line.split(" ", 1)) for line in lines]


def last(path: Path, word: str) -> Instruction:
    """The instruction of this kind that counts."""
    return [one for one in instructions(path) if one.word == word][-1]


def copied_paths(path: Path) -> list[tuple[str, str]]:
    """What comes from the repository: its place there, and in the image's source folder."""
    return [
        pair
        for one in instructions(path)
        if one.word == "COPY" and "--from" not in one.rest
        for pair in copied(one)
    ]


def copied(step: Instruction) -> list[tuple[str, str]]:
    """The sources of a COPY, each with its place in the image's source folder."""
    *sources, target = step.words()
    return [
        (source, f"{target}{Path(source).name}" if target.endswith("/") else target)
        for source in sources
    ]


def build_steps(path: Path) -> list[Instruction]:
    """What the first stage, called build, does in order."""
    steps = instructions(path)
    stages = [place for place, one in enumerate(steps) if one.word == "FROM"]
    assert steps[stages[0]].rest.endswith(" AS build")
    return steps[stages[0] + 1 : stages[1]]
