"""What an open batch was given, from its additions in S3."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from shared.ledger.additions import Addition
from shared.ledger.plans import Plan
from shared.submission.additions import names_of


@dataclass
class GivenRows:
    """The additions of a batch, taken in order, as its record and its plan have them."""

    additions: int = 0
    names: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False
    #: Whether rows that were accepted are lost.
    is_damaged: bool = False
    _size: int = 0
    _sequences: int = 0
    _prompt_tokens: int = 0
    _taken: list[Addition] = field(default_factory=list)

    def take(self, addition: Addition, lines: bytes) -> None:
        """One more."""
        self.additions += 1
        self.names |= names_of(lines)
        self.is_closed = addition.is_last
        self._size += addition.size
        self._sequences += addition.sequences
        self._prompt_tokens += addition.prompt_tokens
        self._taken.append(addition)

    @property
    def takes_rows(self) -> bool:
        return not self.is_closed

    @property
    def fields(self) -> Mapping[str, str | int]:
        """The fields that the additions have written into the record."""
        tokens, rows = (
            sum(getattr(one, name) for one in self._taken) for name in ("tokens", "rows")
        )
        closed = {"closed": 1} if self.is_closed else {}
        return {
            "additions": self.additions,
            "total": rows,
            "size": self._size,
            "queued_requests": self._sequences,
            "prompt_tokens": self._prompt_tokens,
            "lane_tokens": f"{tokens}/{rows}",
            "slices_total": sum(len(one.slices) for one in self._taken),
            **closed,
        }

    def plan(self, first: Plan) -> Plan:
        """The plan that the batch was started with, and the slices of its additions."""
        slices = [slice_ for one in self._taken for slice_ in one.slices]
        return msgspec.structs.replace(first, slices=[*first.slices, *slices])
