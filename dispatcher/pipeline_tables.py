"""The other tables that stages of a pipeline read, held in memory while it runs."""

import array
import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dispatcher.pipeline_input import UnreadableInputError, input_rows
from shared.dataset.dataset import PinnedDataset
from shared.pipeline.declaration import SCORE, is_component
from shared.pipeline.plan import Joining, Ranking
from shared.pipeline.stepping import Dropped, Failed, Item, Outcome, Passed
from shared.storage import Storage

if TYPE_CHECKING:
    from shared.pipeline.nearest import Vectors

#: Of one table: the keys and columns that are named, and the vectors.
_MAX_BYTES = 64 * 1024 * 1024
_MAX_VECTOR_BYTES = 256 * 1024 * 1024
#: Of what one row is given of a table by `top_k`, and of what all rows of a handover are given.
_MAX_GIVEN, _MAX_GIVEN_TOGETHER = 256 * 1024, 64 * 1024 * 1024


class _Ranked(NamedTuple):
    """The vectors of a table, and the columns of each row as JSON."""

    vectors: "Vectors"
    columns: list[bytes]


class PipelineTables:
    """Reads each table once, when rows first come to its stage."""

    def __init__(self, storage: Storage, pinned: Mapping[int, msgspec.Raw]) -> None:
        self._storage = storage
        self._pinned = pinned
        self._read: dict[int, Mapping[str, bytes]] = {}
        self._vectors: dict[int, _Ranked] = {}

    @property
    def are_held(self) -> bool:
        """Whether any is in memory."""
        return bool(self._read or self._vectors)

    def let_go(self) -> None:
        """Forget what is in memory; it is read again when rows come."""
        self._read.clear()
        self._vectors.clear()

    async def joined(self, part: Joining, item: Item) -> Outcome:
        """The row with its columns of the table.

        Raises UnreadableInputError for a table that cannot be read, and TransientError.
        """
        table = self._read.get(part.stage)
        if table is None:
            table = self._read[part.stage] = await self._table(part.stage)
        key = key_text(item.columns.get(part.join.on))
        found = None if key is None else table.get(key)
        if found is not None:
            more: dict[str, Any] = msgspec.json.decode(found)
            return Passed(item.id, {**item.columns, **more}, order=item.order)
        match part.join.missing:
            case "null":
                nulls = dict.fromkeys(part.join.named_columns)
                return Passed(item.id, {**item.columns, **nulls}, order=item.order)
            case "drop":
                return Dropped(item.id, part.stage)
            case "fail":
                reason = f"the table has no row with the key that is in '{part.join.on}'"
                return Failed(item.id, part.stage, "no_match", f"{reason}.")

    async def ranked(self, part: Ranking, items: Sequence[Item]) -> list[Outcome]:
        """The rows with the nearest ones of the table. Raises as `joined`."""
        if not items:
            return []
        table = self._vectors.get(part.stage)
        if table is None:
            table = self._vectors[part.stage] = await self._ranked(part)
        return await asyncio.to_thread(_ranked, part, table, items)

    async def _ranked(self, part: Ranking) -> _Ranked:
        """The table; its rows without a vector are left out."""
        # Only here: most pipelines compare no vectors.
        from shared.pipeline.nearest import Vectors  # noqa: PLC0415  # as above

        numbers, columns, size, dimensions = array.array("f"), list[bytes](), 0, 0
        async for row in self._rows(part.stage):
            if row["vector"] is None:
                continue
            vector = _numbers(row["vector"], part.stage)
            dimensions = dimensions or len(vector)
            if len(vector) != dimensions:
                text = f"The vectors in the table of stage {part.stage} differ in length."
                raise UnreadableInputError("other_dimensions", text)
            numbers.extend(vector)
            columns.append(msgspec.json.encode(row["columns"]))
            size += len(columns[-1])
            if size > _MAX_BYTES or len(numbers) * numbers.itemsize > _MAX_VECTOR_BYTES:
                raise _too_large(part.stage, f"{_MAX_BYTES} bytes, or {_MAX_VECTOR_BYTES} of them")
        if not columns:
            raise UnreadableInputError(
                "no_vectors", f"The table of stage {part.stage} has no vectors."
            )
        return _Ranked(Vectors(numbers, dimensions, part.top_k.metric), columns)

    async def _rows(self, stage: int) -> AsyncIterator[dict[str, Any]]:
        """The table's rows. Raises UnreadableInputError and TransientError."""
        pinned = msgspec.json.decode(self._pinned[stage], type=PinnedDataset)
        async with aclosing(input_rows(self._storage, pinned, skip=0)) as rows:
            async for row in rows:
                if isinstance(row, Failed):
                    text = f"The table of stage {stage}: {row.message}"
                    raise UnreadableInputError(row.code, text)
                yield row.columns

    async def _table(self, stage: int) -> Mapping[str, bytes]:
        """The columns of each row as JSON, by its key. Of several rows with a key, the first."""
        table, size = dict[str, bytes](), 0
        async for row in self._rows(stage):
            key, columns = key_text(row["key"]), msgspec.json.encode(row["columns"])
            if key is None or key in table:
                continue
            size += len(key) + len(columns)
            if size > _MAX_BYTES:
                raise _too_large(stage, f"{_MAX_BYTES} bytes")
            table[key] = columns
        return table


def key_text(value: object) -> str | None:
    """The key that a value is, as text; None if it is none. A number and its text are one key."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        # A column of integers of which some are missing often comes with fractions.
        return str(int(value))
    return msgspec.json.encode(value).decode()


def _ranked(part: Ranking, table: _Ranked, items: Sequence[Item]) -> list[Outcome]:
    found = [table.vectors.vector(item.columns.get(part.top_k.query)) for item in items]
    wanted = [vector for vector in found if vector is not None]
    nearest = iter(table.vectors.nearest(wanted, part.top_k.k) if wanted else ())
    reason = f"'{part.top_k.query}' must hold {table.vectors.dimensions} numbers"
    outcomes, given = list[Outcome](), 0
    for item, vector in zip(items, found, strict=True):
        if vector is None:
            outcomes.append(Failed(item.id, part.stage, "no_vector", f"{reason}."))
            continue
        near = next(nearest)
        size = sum(len(table.columns[one.row]) for one in near)
        if size > _MAX_GIVEN:
            text = f"its nearest rows have more than {_MAX_GIVEN} bytes, the limit."
            outcomes.append(Failed(item.id, part.stage, "too_large", text))
            continue
        if (given := given + size) > _MAX_GIVEN_TOGETHER:
            text = (
                f"Stage {part.stage} gives {len(items)} rows more than {_MAX_GIVEN_TOGETHER} bytes."
            )
            raise UnreadableInputError("too_large", text)
        rows = [{**msgspec.json.decode(table.columns[one.row]), SCORE: one.score} for one in near]
        columns = {**item.columns, part.top_k.into: rows}
        outcomes.append(Passed(item.id, columns, order=item.order))
    return outcomes


def _numbers(value: object, stage: int) -> Sequence[float]:
    """The vector of a table's row. Raises UnreadableInputError."""
    if isinstance(value, list) and value and all(map(is_component, value)):
        return value
    text = f"A row in the table of stage {stage} has something else than a vector."
    raise UnreadableInputError("no_vector", text)


def _too_large(stage: int, limit: str) -> UnreadableInputError:
    text = f"The table of stage {stage} has more than {limit}, the limit."
    return UnreadableInputError("table_too_large", text)
