"""Runs a writer of tables: reads for it what it asks for, and gives the files that it makes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from shared.dataset.child import Reader, said_by
from shared.dataset.frames import Done, Kind, Problem, encoded
from shared.table.frames import FileEnd, TableJob

#: What a writer that has failed leaves of its job.
DIED = Problem(
    "table_failed",
    "The table could not be written: it took too much memory, or its columns are not what they "
    "should be. All results are in the output and error files.",
    "output",
)


async def written(
    job: TableJob, read: Reader
) -> AsyncGenerator[bytes | FileEnd | Problem | Done, None]:
    """The bytes of the table's files, each file's end, and the end of all.

    After a problem, what was given is no table. Raises what `read` raises.
    """

    async def read_bounded(number: int, start: int, end: int) -> bytes:
        if not 0 <= start < end <= job.sizes[number]:
            raise ValueError(f"A writer of tables asks for bytes {start} to {end}.")
        return await read(number, start, end)

    child = said_by("shared.table.writer", encoded(Kind.JOB, job), read_bounded)
    async with aclosing(child) as frames:
        async for said in frames:
            match said:
                case None:
                    yield DIED
                    yield Done(0, 0, 1)
                case Kind.FILE, body:
                    yield body
                case Kind.FILE_END, body:
                    yield msgspec.json.decode(body, type=FileEnd)
                case Kind.PROBLEM, body:
                    yield msgspec.json.decode(body, type=Problem)
                case _, body:
                    yield msgspec.json.decode(body, type=Done)
