"""How fast the engine of a lane is, by kind of row. Pure.

A pace is learned only from time in which the engine had work, and only to the part to which it was
full, so that it is neither that of a quiet night nor that of a start. It changes with results and
never without them. What it tells is the engine, and not what others have on it now.
"""

from collections.abc import Mapping
from math import exp, log2
from typing import NamedTuple

import msgspec

#: What the engine did this many busy seconds ago counts about a third of what it does now.
MEMORY_SECONDS = 900.0
#: A kind is known by its own figures after about as many rows.
_ENOUGH_ROWS = 8.0
#: Less time than this says nothing, and fewer rows than these are forgotten.
_LEAST_SECONDS, _FORGOTTEN_ROWS = 1e-3, 1e-3
#: Each class of lengths has rows up to four times as long as the one before.
_POWERS_PER_CLASS = 2


class TokensOfRows(NamedTuple):
    """Predicted tokens, and of how many rows."""

    tokens: int
    rows: int


class Done(NamedTuple):
    """Rows of a kind that have results, their predicted tokens, and those that they took."""

    rows: float = 0
    predicted: float = 0
    used: float = 0


class KindPace(msgspec.Struct, frozen=True):
    """Sums over the rows of one kind, the newest of which count most."""

    rows: float = 0.0
    predicted: float = 0.0
    used: float = 0.0
    #: Seconds of the whole engine.
    seconds: float = 0.0

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.used


_SUMS = KindPace.__struct_fields__


class Pace(msgspec.Struct, frozen=True):
    """What is known of a lane's engine, by kind of row."""

    kinds: dict[str, KindPace] = {}

    @property
    def whole(self) -> KindPace | None:
        """All kinds together; None while nothing is known."""
        found = self.kinds.values()
        sums = [sum(getattr(one, name) for one in found) for name in _SUMS]
        return KindPace(*sums) if sums[-1] > 0 else None

    def of(self, kind: str) -> KindPace | None:
        """What is to be expected of a kind: its own figures, or those of all while it has none."""
        whole = self.whole
        own = self.kinds.get(kind)
        if whole is None or own is None:
            return whole
        scale = _ENOUGH_ROWS / whole.rows / (1 + own.rows)
        return _sum(own, whole, scale)

    def learn(self, done: Mapping[str, Done], busy_seconds: float) -> "Pace":
        """The pace after these results, for which the engine was busy so many seconds.

        The seconds are divided among the kinds by what each was expected to take.
        """
        done = {kind: one for kind, one in done.items() if min(one) > 0}
        if not done or busy_seconds < _LEAST_SECONDS:
            return self
        expected = {kind: one.used * self._cost(kind) for kind, one in done.items()}
        scale = busy_seconds / sum(expected.values())
        kept = exp(-busy_seconds / MEMORY_SECONDS)
        kinds = {
            kind: KindPace(*(kept * getattr(one, name) for name in _SUMS))
            for kind, one in self.kinds.items()
            if kept * one.rows > _FORGOTTEN_ROWS
        }
        for kind, one in done.items():
            new = KindPace(one.rows, one.predicted, one.used, scale * expected[kind])
            kinds[kind] = _sum(kinds.get(kind, KindPace()), new, 1.0)
        return Pace(kinds)

    def _cost(self, kind: str) -> float:
        found = self.of(kind)
        return found.seconds_per_token if found else 1.0


def rows_per_second(pace: Pace, endpoint: str, what: TokensOfRows) -> float:
    """How many such rows the whole engine runs in a second; 0 while that is not known."""
    found = pace.of(kind_of(endpoint, *what))
    if found is None or not what.tokens:
        return 0.0
    return found.predicted / found.seconds * what.rows / what.tokens


def kind_of(endpoint: str, tokens: int, rows: int) -> str:
    """The kind of rows: their endpoint, and the class of their predicted length.

    `lua/lib/pace.lua` names kinds in the same way.
    """
    length = max(1.0, tokens / max(1, rows))
    return f"{endpoint} {int(log2(length) / _POWERS_PER_CLASS + 1e-9)}"


def _sum(one: KindPace, other: KindPace, scale: float) -> KindPace:
    return KindPace(
        one.rows + scale * other.rows,
        one.predicted + scale * other.predicted,
        one.used + scale * other.used,
        one.seconds + scale * other.seconds,
    )


def done_by_kind(counts: Mapping[str, int]) -> dict[str, Done]:
    """The counters of `lua/lib/pace.lua` as sums by kind."""
    kinds = {name.partition(" ")[2] for name in counts}
    return {
        kind: Done(*(counts.get(f"{what} {kind}", 0) for what in Done._fields)) for kind in kinds
    }


def to_text(pace: Pace) -> str:
    """The pace as a lane job keeps it."""
    return msgspec.json.encode(pace).decode()


def to_pace(text: str) -> Pace:
    """The pace that `to_text` wrote; an empty one where there is none."""
    return msgspec.json.decode(text, type=Pace) if text else Pace()
