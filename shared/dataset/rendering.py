"""Runs a renderer: reads for it what it asks for, and gives what it makes."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

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
    sources = job.pinned.sources

    async def read_source(number: int, start: int, end: int) -> bytes:
        return await read(sources[number], start, end)

    child = said_by(
        "shared.dataset.renderer",
        encoded(Kind.JOB, job),
        sizes=[source.size for source in sources],
        read=read_source,
        died=DIED,
    )
    async with aclosing(child) as parts:
        async for said in parts:
            match said:
                case Problem() | Done():
                    yield said
                case Kind.CARRIED, body:
                    yield Carried(body)
                case _, body:
                    yield body
