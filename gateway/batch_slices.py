"""A planned batch's slices, found by row, by commit and by place in the output file."""

from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from shared.ledger.merging import stretches
from shared.slices import PlannedSlice
from shared.state import BatchRecord, State

#: Slices that are looked at together.
_PAGE = 100


class BatchSlices:
    """The slices of one batch, read from Redis a page at a time."""

    def __init__(self, state: State, batch: BatchRecord) -> None:
        self._state = state
        self._batch = batch

    async def are_known(self) -> bool:
        """Whether Redis still has them; it keeps them for a day after the batch's end."""
        async for _ in self.at([0]):
            return True
        return False

    async def stretches_from(self, row: int) -> AsyncGenerator[list[PlannedSlice], None]:
        """The slices of each stretch, from the row's stretch on. Most stretches have one slice."""
        count = self._batch.number("slices_total")
        low, high, found = 0, count, None
        while high - low > 1:
            middle = (low + high) // 2
            async for slice_ in self.at([middle]):
                if slice_.slice.first_row <= row:
                    low, found = middle, slice_.slice
                else:
                    high = middle
                break
            else:
                return
        if found is not None and found.mask:
            low = await self._begin_of_stretch(low, found.first_row)
        async for stretch in stretches(self.at(range(low, count))):
            yield stretch

    async def _begin_of_stretch(self, index: int, first_row: int) -> int:
        """The first slice of the stretch with this first row, of which slice `index` is one."""
        while index:
            before = range(max(0, index - _PAGE), index)
            slices = [slice_ async for slice_ in self.at(before)]
            found = sum(slice_.slice.first_row == first_row for slice_ in slices)
            index -= found
            if found < len(before):
                break
        return index

    async def commits_from(self, start: int, end: int) -> AsyncIterator[tuple[PlannedSlice, int]]:
        """The committed slices with lines at places [start, end), and the place of the first line.

        Places count lines in the order of completion.
        """
        place, last = start, -1
        while place < end:
            found = await self._state.slices.commits(self._batch.id, place)
            fresh = [(index, before) for index, before in found if before > last]
            if not fresh:
                return
            befores = dict(fresh)
            async for slice_ in self.at(list(befores)):
                rows = slice_.part.rows if slice_.part else 0
                last = befores[slice_.index]
                place = last + rows
                if place > start and last < end:
                    yield slice_, last

    async def committed_rows(self) -> int:
        """How many rows ran, of a batch that has ended."""
        rows = 0
        last = await self._state.slices.commits(self._batch.id, self._batch.number("total"))
        for index, before in last:
            async for slice_ in self.at([index]):
                rows = before + (slice_.part.rows if slice_.part else 0)
        return rows

    async def output_places(self) -> "tuple[array[int], array[int]]":
        """Where in the output file the lines of each slice's stretch begin and end."""
        starts, ends = array("q"), array("q")
        first_row, begin, place = 0, 0, 0
        async for slice_ in self.at(range(self._batch.number("slices_total"))):
            if slice_.slice.first_row != first_row:
                ends.extend([place] * (len(starts) - len(ends)))
                first_row, begin = slice_.slice.first_row, place
            starts.append(begin)
            place += slice_.part.output_bytes if slice_.part else 0
        ends.extend([place] * (len(starts) - len(ends)))
        return starts, ends

    def at(self, indexes: Sequence[int]) -> AsyncIterator[PlannedSlice]:
        """The slices with these indexes."""
        return self._state.slices.some(self._batch.id, self._batch.fields["plan"], indexes)
