"""Runs a writer of tables: reads for it what it asks for, and gives the files that it makes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from shared.dataset.child import Reader, said_by
from shared.dataset.frames import Done, Kind, Problem, encoded
from shared.table.frames import FileEnd, RowsJob, TableJob

#: What a writer that has failed leaves of its job.
DIED = Problem(
    "table_failed",
    "The table could not be written: it took too much memory, or its columns are not what they "
    "should be. All results are in the output and error files.",
    "output",
)


async def written(
    job: TableJob | RowsJob, read: Reader
) -> AsyncGenerator[bytes | FileEnd | Problem | Done, None]:
    """The bytes of the table's files, each file's end, and the end of all.

    After a problem, what was given is no table. Raises what `read` raises.
    """
    module = "shared.table.writer" if isinstance(job, TableJob) else "shared.table.rows_writer"
    child = said_by(module, encoded(Kind.JOB, job), sizes=job.sizes, read=read, died=DIED)
    async with aclosing(child) as parts:
        async for said in parts:
            match said:
                case Problem() | Done():
                    yield said
                case Kind.FILE_END, body:
                    yield msgspec.json.decode(body, type=FileEnd)
                case _, body:
                    yield body
