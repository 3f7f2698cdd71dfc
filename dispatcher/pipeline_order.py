"""The rows of a pipeline's last edge in the order of its input, read from its handovers.

A handover's own rows are in that order, and the handovers overlap where slices were done out of
turn. They are merged; only some of them are held in memory at a time.
"""

import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import structlog

from dispatcher.pipeline_edge import EdgeLog
from shared.errors import BrokenObjectError
from shared.pipeline.stepping import Item, items_of

log = structlog.get_logger()

#: Of handovers that are held in memory, as JSON: most have a few MiB, and some far more. Where more
#: overlap, some are read again.
_HELD_BYTES = 64 * 1024 * 1024
#: Rows that are given together.
_TOGETHER = 200


async def in_order(
    edge: EdgeLog, *, held_bytes: int = _HELD_BYTES
) -> AsyncIterator[Sequence[Item]]:
    """The rows that the edge has handed on, some at a time.

    Those of damaged handovers are left out. At most `held_bytes` of handovers are in memory, or one
    that is larger. Raises TransientError.
    """
    reading = _Reading(edge, held_bytes)
    #: Of each handover, its next row: where that belongs, the handover's number, and its own.
    heads = [(begins, number, 0) for begins, number in edge.begins]
    heapq.heapify(heads)
    some: list[Item] = []
    while heads:
        _, number, row = heapq.heappop(heads)
        items = await reading.items(number)
        end = _until(items, row, heads[0][:2] if heads else None, number)
        some += items[row:end]
        if end < len(items):
            heapq.heappush(heads, (items[end].order, number, end))
        else:
            reading.drop(number)
        if len(some) >= _TOGETHER:
            yield some
            some = []
    if some:
        yield some


def _until(
    items: Sequence[Item], row: int, other: tuple[tuple[int, ...], int] | None, number: int
) -> int:
    """Where the rows end that come before those of the next other handover."""
    end = row
    while end < len(items) and (other is None or (items[end].order, number) <= other):
        end += 1
    return end


class _Held(NamedTuple):
    items: Sequence[Item]
    size: int


class _Reading:
    """The handovers that are held in memory."""

    def __init__(self, edge: EdgeLog, most_bytes: int) -> None:
        self._edge = edge
        self._most_bytes = most_bytes
        #: By its number, what a handover has, and how many bytes that were.
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._bytes = 0

    async def items(self, number: int) -> Sequence[Item]:
        """The rows of a handover; one that is damaged has failed the pipeline, and has none."""
        if number not in self._held:
            self._held[number] = read = await self._read(number)
            self._bytes += read.size
            while self._bytes > self._most_bytes and len(self._held) > 1:
                self.drop(next(iter(self._held)))
        self._held.move_to_end(number)
        return self._held[number].items

    def drop(self, number: int) -> None:
        if (gone := self._held.pop(number, None)) is not None:
            self._bytes -= gone.size

    async def _read(self, number: int) -> "_Held":
        try:
            _, sections = await self._edge.sections(number)
        except BrokenObjectError as error:
            log.error("pipeline.broken", reason=str(error))  # noqa: TRY400  # the reason says it all
            return _Held([], 0)
        return _Held(items_of(sections.items), len(sections.items))
