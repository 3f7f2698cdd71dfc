"""Runs a process without credentials that handles a tenant's data, and reads objects for it."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import msgspec

from shared.dataset.frames import HEADER_BYTES, Done, Kind, Problem, Read, frame, header

#: What it is asked to read: the number of an object, and bytes [start, end) of it.
Reader = Callable[[int, int, int], Awaitable[bytes]]

#: A child that says nothing for so long hangs.
_SILENCE_SECONDS = 600.0
_LEFT_BYTES = 64 * 1024
#: Nothing of ours: the child runs or parses what is a tenant's. Arrow's own pools reserve too much
#: memory.
_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "1",
}


async def said_by(
    module: str, job: bytes, *, sizes: Sequence[int], read: Reader, died: Problem
) -> AsyncGenerator[tuple[Kind, bytes] | Problem | Done, None]:
    """What a process that runs the module says about the job: frames, problems, and the end.

    It reads objects of these sizes. If it dies, the problem is `died`. Raises what `read` raises,
    and ValueError if bytes are wanted that no object has.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-m",
        module,
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=_ENVIRONMENT,
    )
    try:
        await _send(process, job)
        while (said := await _next(process)) is not None:
            match said:
                case Kind.READ, body:
                    asked = msgspec.json.decode(body, type=Read)
                    if not 0 <= asked.start < asked.end <= sizes[asked.source]:
                        text = f"{module} asks for bytes {asked.start} to {asked.end}."
                        raise ValueError(text)
                    found = await read(asked.source, asked.start, asked.end)
                    await _send(process, frame(Kind.BYTES, found))
                case Kind.PROBLEM, body:
                    yield msgspec.json.decode(body, type=Problem)
                case Kind.DONE, body:
                    yield msgspec.json.decode(body, type=Done)
                    return
                case _:
                    yield said
        yield died
        yield Done(0, 0, 1)
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    """Kill the child, if it still lives, and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    # Nobody reads a pipe of which much is unread already, and a process counts as gone only once
    # its pipes have ended: to wait for it would take for ever.
    while await process.stdout.read(_LEFT_BYTES):
        pass
    await process.wait()


async def _send(process: Process, frame: bytes) -> None:
    assert process.stdin is not None  # noqa: S101  # it is a pipe
    process.stdin.write(frame)
    with contextlib.suppress(ConnectionError):
        # If it is dead, the next frame is missing.
        await process.stdin.drain()


async def _next(process: Process) -> tuple[Kind, bytes] | None:
    """The next frame; None from a child that is dead, hangs or talks nonsense."""
    assert process.stdout is not None  # noqa: S101  # it is a pipe
    try:
        async with asyncio.timeout(_SILENCE_SECONDS):
            kind, length = header(await process.stdout.readexactly(HEADER_BYTES))
            return kind, await process.stdout.readexactly(length)
    except (asyncio.IncompleteReadError, TimeoutError, ValueError):
        return None
