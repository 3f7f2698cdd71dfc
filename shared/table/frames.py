"""What a writer of tables is told, and what it says. Pure."""

import msgspec

from shared.table.output import RowsTable, WantedTable

#: The objects that a writer may read, by their numbers.
OUTPUT, ERROR, CARRIED = 0, 1, 2


class TableJob(msgspec.Struct, frozen=True):
    """Write this table.

    `sizes` are those of the output file, the error file and what the rows carry; 0 for none. A file
    of the table ends as soon as it has `file_bytes`.
    """

    table: WantedTable
    sizes: list[int]
    file_bytes: int = 256 * 1024 * 1024
    memory_bytes: int = 3 * 1024**3


class RowsJob(msgspec.Struct, frozen=True):
    """Write a table of rows that are lines of JSON: the one object has `sizes[0]` bytes."""

    table: RowsTable
    sizes: list[int]
    file_bytes: int = 256 * 1024 * 1024
    memory_bytes: int = 3 * 1024**3


class FileEnd(msgspec.Struct, frozen=True):
    """A file of the table is whole, and has so many rows."""

    rows: int
