"""Messages that cannot be answered yet: the workers are not there, a grammar is being compiled, or
the request they name may still be submitted again.

Knows the rules of waiting, not what the messages do.
"""

from collections.abc import Collection
from dataclasses import dataclass

from scheduler_svc.engine.connection import Connection, Incoming

# after a start of the core: frontends may be about to submit what an earlier core knew
NAME_WINDOW_S = 3.0
# from the last frontend's Hello until what it submits again has surely arrived
_SETTLE_S = 0.3

Name = tuple[str, str]  # tenant, request id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """One message that waits."""

    incoming: Incoming
    name: Name
    number: int | None = None  # of the request, for a Submit or an Attach
    give_up_at: float | None = None  # for a Submit; None: never


class Holding:
    """Lists in order of arrival: what waits for workers, for a grammar, for a name."""

    def __init__(self, *, expected_frontends: Collection[str], now: float) -> None:
        self._expected = set(expected_frontends)
        self._window_ends_at = now + NAME_WINDOW_S
        self._known: set[Name] = set()
        self._for_workers: list[Held] = []
        self._for_grammar: list[Held] = []
        self._for_name: list[Held] = []

    def note_hello(self, name: str, now: float) -> None:
        """A frontend came; once all have come, unknown names are unknown."""
        if name in self._expected:
            self._expected.remove(name)
            if not self._expected:
                self._window_ends_at = min(self._window_ends_at, now + _SETTLE_S)

    def note_known(self, name: Name, now: float) -> None:
        """A request came; whether its name is known is up to the core from now on."""
        if now < self._window_ends_at:
            self._known.add(name)
        elif self._known:
            self._known.clear()

    def may_become_known(self, name: Name, now: float) -> bool:
        """Whether a name that the core does not know may be about to be submitted."""
        if any(held.name == name for held in (*self._for_workers, *self._for_grammar)):
            return True
        return now < self._window_ends_at and name not in self._known

    def wait_for_workers(self, held: Held) -> None:
        """Keeps a Submit until the first epoch."""
        self._for_workers.append(held)

    def wait_for_grammar(self, held: Held) -> None:
        """Keeps a Submit until its grammar is compiled."""
        self._for_grammar.append(held)

    def wait_for_name(self, held: Held) -> None:
        """Keeps a message until its name is known or `may_become_known` no longer."""
        self._for_name.append(held)

    def take_for_workers(self) -> list[Held]:
        """All Submits that waited for workers: they came, or nothing new is taken."""
        taken, self._for_workers = self._for_workers, []
        return taken

    def take_for_grammar(self) -> list[Held]:
        """All Submits that waited for a grammar: some grammar is compiled."""
        taken, self._for_grammar = self._for_grammar, []
        return taken

    def take_uncompiled(self, now: float) -> list[Held]:
        """Submits whose grammars were compiled for long enough."""
        overdue = [h for h in self._for_grammar if h.give_up_at is not None and now >= h.give_up_at]
        self._for_grammar = [held for held in self._for_grammar if held not in overdue]
        return overdue

    def take_overdue(self, now: float) -> list[Held]:
        """Submits that waited for workers for long enough."""
        overdue = [h for h in self._for_workers if h.give_up_at is not None and now >= h.give_up_at]
        self._for_workers = [held for held in self._for_workers if held not in overdue]
        return overdue

    def take_named(self, name: Name) -> list[Held]:
        """What waited for a name that is known now."""
        taken = [held for held in self._for_name if held.name == name]
        self._for_name = [held for held in self._for_name if held.name != name]
        return taken

    def take_unknown(self, now: float) -> list[Held]:
        """What waited for names that will not become known."""
        taken = [held for held in self._for_name if not self.may_become_known(held.name, now)]
        self._for_name = [held for held in self._for_name if held not in taken]
        return taken

    def forget_owner(self, owner: int) -> None:
        """A connection is over; its frontend says again what it still wants."""
        self._for_workers = [h for h in self._for_workers if h.incoming.connection.owner != owner]
        self._for_name = [h for h in self._for_name if h.incoming.connection.owner != owner]
        self._for_grammar = [h for h in self._for_grammar if h.incoming.connection.owner != owner]

    def take_request(self, connection: Connection, number: int) -> Held | None:
        """Removes the Submit or Attach that brought a number, if it waits here."""
        for waiting in (self._for_workers, self._for_grammar, self._for_name):
            for held in waiting:
                if held.incoming.connection is connection and held.number == number:
                    waiting.remove(held)
                    return held
        return None

    def next_due(self, now: float) -> float | None:
        """When time alone decides about something held."""
        submits = (*self._for_workers, *self._for_grammar)
        times = [held.give_up_at for held in submits if held.give_up_at is not None]
        if self._for_name and now < self._window_ends_at:
            times.append(self._window_ends_at)
        return min(times, default=None)
