"""What the core knows of grammars: that outputs have one. The engine makes and reads them."""

from typing import Protocol


class GrammarState(Protocol):
    """Where one output stands in its grammar."""


class Grammar(Protocol):
    """The form of a request's outputs."""

    def begin(self) -> GrammarState:
        """The state of an output that has no tokens yet; costs nothing."""

    def retired(self) -> "Grammar":
        """What an ended request keeps of it, for whoever attaches: no output can begin."""

    @property
    def num_bytes(self) -> int:
        """Memory that it takes when it is retired."""
