"""Runs a renderer: reads for it what it asks for, and gives what it makes."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from shared.dataset.child import said_by
from shared.dataset.dataset import Source
from shared.dataset.frames import Done, Job, Kind, Problem, encoded

#: Bytes [start, end) of a source, counted from the source's start.
ReadSource = Callable[[Source, int, int], Awaitable[bytes]]

#: What a renderer that has failed leaves of its job.
DIED = Problem(
    "rendering_failed",
    "The dataset could not be rendered: it took too much memory, or too long at one place. "
    "Simplify the template, or write the data in smaller row groups.",
    "input",
)


class Carried(NamedTuple):
    """Bytes of the object with the columns that the rows carry along."""

    body: bytes


async def rendered(
    job: Job, read: ReadSource
) -> AsyncGenerator[bytes | Carried | Problem | Done, None]:
    """The dataset's request lines in chunks, its problems as they are found, and the end.

    Raises what `read` raises.
    """

    async def read_source(number: int, start: int, end: int) -> bytes:
        source = job.pinned.sources[number]
        if not 0 <= start < end <= source.size:
            raise ValueError(f"A renderer asks for bytes {start} to {end}.")
        return await read(source, start, end)

    child = said_by("shared.dataset.renderer", encoded(Kind.JOB, job), read_source)
    async with aclosing(child) as frames:
        async for said in frames:
            match said:
                case None:
                    yield DIED
                    yield Done(0, 0, 1)
                case Kind.LINES, body:
                    yield body
                case Kind.CARRIED, body:
                    yield Carried(body)
                case Kind.PROBLEM, body:
                    yield msgspec.json.decode(body, type=Problem)
                case _, body:
                    yield msgspec.json.decode(body, type=Done)
