"""What the core knows of grammars: that outputs have one. The engine makes and reads them."""

from typing import Protocol


class GrammarState(Protocol):
    """Where one output stands in its grammar."""


class Grammar(Protocol):
    """The form of a request's outputs."""

    def begin(self) -> GrammarState:
        """The state of an output that has no tokens yet; costs nothing."""
