"""The tables that stages of a pipeline join, held in memory while it runs."""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from dispatcher.pipeline_input import InputLostError, input_rows
from shared.dataset.dataset import PinnedDataset
from shared.pipeline.plan import Joining
from shared.pipeline.stepping import Dropped, Failed, Item, Outcome, Passed
from shared.storage import Storage

#: Of one table: the keys and columns that are named.
_MAX_BYTES = 64 * 1024 * 1024


class PipelineTables:
    """Reads each table once, when rows first come to its stage."""

    def __init__(self, storage: Storage, pinned: Mapping[int, msgspec.Raw]) -> None:
        self._storage = storage
        self._pinned = pinned
        self._read: dict[int, Mapping[str, bytes]] = {}

    async def joined(self, part: Joining, item: Item) -> Outcome:
        """The row with its columns of the table.

        Raises InputLostError for a table that cannot be read, and TransientError.
        """
        table = self._read.get(part.stage)
        if table is None:
            table = self._read[part.stage] = await self._table(part.stage)
        key = item.columns.get(part.join.on)
        found = None if key is None else table.get(str(key))
        if found is not None:
            more: dict[str, Any] = msgspec.json.decode(found)
            return Passed(item.id, {**item.columns, **more})
        match part.join.missing:
            case "null":
                nulls = dict.fromkeys(part.join.named_columns)
                return Passed(item.id, {**item.columns, **nulls})
            case "drop":
                return Dropped(item.id, part.stage)
            case "fail":
                reason = f"the table has no row with the key that is in '{part.join.on}'"
                return Failed(item.id, part.stage, "no_match", f"{reason}.")

    async def _table(self, stage: int) -> Mapping[str, bytes]:
        """The columns of each row as JSON, by its key. Of several rows with a key, the first."""
        pinned = msgspec.json.decode(self._pinned[stage], type=PinnedDataset)
        table, size = dict[str, bytes](), 0
        async with aclosing(input_rows(self._storage, pinned, skip=0)) as rows:
            async for row in rows:
                if isinstance(row, Failed):
                    raise InputLostError(row.code, f"The table of stage {stage}: {row.message}")
                key, columns = str(row.columns["key"]), msgspec.json.encode(row.columns["columns"])
                if key in table:
                    continue
                size += len(key) + len(columns)
                if size > _MAX_BYTES:
                    text = f"The table of stage {stage} has more than {_MAX_BYTES} bytes, the limit"
                    raise InputLostError("table_too_large", f"{text} for a join.")
                table[key] = columns
        return table
