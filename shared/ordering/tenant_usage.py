"""What rows of a tenant took beside what was predicted of them, by kind of row. Pure.

Tenants ask for other lengths of answers than they get, each in its own way, and a token of an
answer is a step of the engine in which its row stays there, while tokens of a prompt are computed
together. Redis keeps the sums for each lane (`lua/lib/pace.lua`).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

#: What is known of rows is halved beyond so many of them.
USAGE_ROWS = 2000
#: A lane knows so many kinds of each tenant, and so many tenants: those that had rows last.
USAGE_KINDS, USAGE_TENANTS = 8, 500
#: A tenant is known by its own figures after about as many rows, as a kind is in `pace`.
_ENOUGH_ROWS = 8.0

_kinds = msgspec.json.Decoder(list[tuple[str, float, float, float, float]])


class TenantKind(NamedTuple):
    """Rows of one kind, as of `pace.kind_of`, of one tenant."""

    kind: str
    tenant: str


class TenantUsage(NamedTuple):
    """Rows that have results, their predicted tokens, and what they took. New rows count most."""

    rows: float = 0
    predicted: float = 0
    #: Tokens of prompts that were not cached.
    prompts: float = 0
    answers: float = 0

    @property
    def used(self) -> float:
        return self.prompts + self.answers

    @property
    def answer_part(self) -> float:
        """The part of the tokens that were of answers."""
        return self.answers / self.used if self.used else 0.0

    def ratio(self, before: float) -> float:
        """Used tokens for a predicted one. `before` is supposed of a tenant without rows."""
        if not self.rows:
            return before
        prior = _ENOUGH_ROWS * self.predicted / self.rows
        return (self.used + prior * before) / (self.predicted + prior) if self.predicted else before


def of_all(usages: Iterable[TenantUsage]) -> TenantUsage:
    """Their sum."""
    return TenantUsage(*map(sum, zip(TenantUsage(), *usages, strict=True)))


def to_usages(texts: Mapping[str, str]) -> dict[TenantKind, TenantUsage]:
    """What the lane's hash says: of each tenant its kinds, each with the sums in their order."""
    return {
        TenantKind(kind, tenant): TenantUsage(*sums)
        for tenant, text in texts.items()
        for kind, *sums in _kinds.decode(text)
    }
