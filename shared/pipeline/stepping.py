"""What is said to the process that takes rows through stages, and what it says. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One stage that the process does: a filter, or a text in chunks."""

    stage: int
    filter: str = ""
    column: str = ""
    into: str = ""
    tokens: int = 0
    overlap: int = 0


class Render(msgspec.Struct, frozen=True):
    """The request that is made of each row at the end."""

    stage: int
    endpoint: str
    template: dict[str, Any]


class StepsJob(msgspec.Struct, frozen=True):
    """Take rows, which are `size` bytes of lines of JSON, through these steps."""

    steps: list[Step]
    render: Render | None
    size: int
    #: Of the tokenizers' files whose tokens count, by stage; without one they are estimated.
    tokenizer_sizes: dict[int, int] = {}
    row_seconds: float = 2.0
    memory_bytes: int = 3 * 1024**3


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row with its name and its columns.

    `order` says where it belongs among all rows: the number of its input row, and behind it its
    number in each split. Rows of a version that kept none have an empty one.
    """

    id: str
    columns: dict[str, Any]
    order: tuple[int, ...] = ()


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """A row that has passed all steps, and the line of its request, if one was to be made."""

    id: str
    columns: dict[str, Any]
    line: str = ""
    order: tuple[int, ...] = ()

    @property
    def item(self) -> Item:
        """The row alone."""
        return Item(self.id, self.columns, self.order)


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A row that ends at a stage for a reason, which quotes nothing of it."""

    id: str
    stage: int
    code: str
    message: str


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """A row that a stage does not want."""

    id: str
    stage: int


Outcome = Passed | Failed | Dropped
_outcomes = msgspec.json.Decoder(Outcome)
_items = msgspec.json.Decoder(Item)


def lines_of(values: Iterable[object]) -> bytes:
    """Each of the values as a line of JSON."""
    return b"".join(msgspec.json.encode(one) + b"\n" for one in values)


def items_of(lines: bytes) -> list[Item]:
    """The rows of these lines."""
    return [_items.decode(line) for line in lines.split(b"\n") if line]


def outcomes_of(lines: bytes) -> list[Outcome]:
    """The outcomes of these lines."""
    return [_outcomes.decode(line) for line in lines.split(b"\n") if line]
