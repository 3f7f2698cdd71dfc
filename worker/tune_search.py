"""Which settings of an engine are tried next: a walk from the catalog's own, step by step. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

#: A setting is better only if it is by this part: two runs of the same differ by less.
_GAIN = 1.03


class Setting(NamedTuple):
    """What an engine is started with. The walk takes the fields in this order."""

    seats: int
    batched_tokens: int
    fronts: int
    #: On one card.
    replicas: int


class Limits(NamedTuple):
    """The most of each field; what is 1 is not tried."""

    seats: int = 8192
    batched_tokens: int = 131_072
    fronts: int = 8
    replicas: int = 8


class Search:
    """Doubles or halves one field at a time while that pays, and ends when none does."""

    def __init__(self, first: Setting, limits: Limits) -> None:
        self._limits = limits
        self._rates: dict[Setting, float] = {}
        self.best = first
        self._waiting = [first]

    @property
    def rates(self) -> dict[Setting, float]:
        """Rows a second of what has been tried, 0 for what does not start."""
        return dict(self._rates)

    def next(self) -> Setting | None:
        """What to try; None if nothing is left."""
        while self._waiting:
            setting = self._waiting.pop(0)
            if setting not in self._rates:
                return setting
        return None

    def note(self, setting: Setting, rows_per_second: float) -> None:
        """It has been tried."""
        before = self._rates.get(self.best, 0.0)
        self._rates[setting] = rows_per_second
        if len(self._rates) == 1 or rows_per_second > before * _GAIN:
            was, self.best = self.best, setting
            # What has paid once is tried again first.
            self._waiting = [*self._further(was, setting), *self._around(setting)]

    def _further(self, before: Setting, now: Setting) -> Iterator[Setting]:
        for field in Setting._fields:
            old, new = getattr(before, field), getattr(now, field)
            if old != new:
                yield from self._with(now, field, new * 2 if new > old else new // 2)

    def _around(self, setting: Setting) -> Iterator[Setting]:
        for field in Setting._fields:
            value = getattr(setting, field)
            yield from self._with(setting, field, value * 2)
            yield from self._with(setting, field, value // 2)

    def _with(self, setting: Setting, field: str, value: int) -> Iterator[Setting]:
        found = setting._replace(**{field: value})
        # vLLM refuses more seats than a step has tokens.
        if 1 <= value <= getattr(self._limits, field) and found.seats < found.batched_tokens:
            yield found
