"""Runs a renderer: reads for it what it asks for, and gives what it makes."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from shared.dataset.dataset import Source
from shared.dataset.frames import (
    HEADER_BYTES,
    Done,
    Job,
    Kind,
    Problem,
    Read,
    encoded,
    frame,
    header,
)

#: Bytes [start, end) of a source, counted from the source's start.
ReadSource = Callable[[Source, int, int], Awaitable[bytes]]

#: A renderer that says nothing for so long hangs. It bounds the time of each row itself.
_SILENCE_SECONDS = 600.0
#: Nothing of ours: the renderer runs what tenants write. Arrow's own pools reserve too much memory.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
}
#: What a renderer that has failed leaves of its job.
DIED = Problem(
    "rendering_failed",
    "The dataset could not be rendered: it took too much memory, or too long at one place. "
    "Simplify the template, or write the data in smaller row groups.",
    "input",
)


async def rendered(job: Job, read: ReadSource) -> AsyncGenerator[bytes | Problem | Done, None]:
    """The dataset's request lines in chunks, its problems as they are found, and the end.

    Raises what `read` raises.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        "shared.dataset.renderer",
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=_ENVIRONMENT,
    )
    try:
        await _send(process, encoded(Kind.JOB, job))
        while (said := await _next(process)) is not None:
            kind, body = said
            match kind:
                case Kind.LINES:
                    yield body
                case Kind.PROBLEM:
                    yield msgspec.json.decode(body, type=Problem)
                case Kind.DONE:
                    yield msgspec.json.decode(body, type=Done)
                    return
                case _:
                    await _send(process, frame(Kind.BYTES, await _read(job, body, read)))
        yield DIED
        yield Done(0, 0, 1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _read(job: Job, body: bytes, read: ReadSource) -> bytes:
    asked = msgspec.json.decode(body, type=Read)
    source = job.pinned.sources[asked.source]
    if not 0 <= asked.start < asked.end <= source.size:
        raise ValueError(f"A renderer asks for bytes {asked.start} to {asked.end}.")
    return await read(source, asked.start, asked.end)


async def _send(process: Process, frame: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # it is a pipe
    process.stdin.write(frame)
    with contextlib.suppress(ConnectionError):
        # If it is dead, the next frame is missing.
        await process.stdin.drain()


async def _next(process: Process) -> tuple[Kind, bytes] | None:
    """The next frame; None from a renderer that is dead, hangs or talks nonsense."""
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            kind, length = header(await process.stdout.readexactly(HEADER_BYTES))
            return kind, await process.stdout.readexactly(length)
    except (asyncio.IncompleteReadError, TimeoutError, ValueError):
        return None
