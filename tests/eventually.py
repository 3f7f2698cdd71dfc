"""Waits for what other processes and tasks do, without guessing how long it takes."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

_PAUSE_SECONDS = 0.02


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 120) -> None:  # noqa: ASYNC109  # it is the assertion's limit, not a cancellation
    """Return as soon as the condition holds; fail with its text when `timeout` is over."""
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {timeout} s: {_text(condition)}")
        await asyncio.sleep(_PAUSE_SECONDS)


def wait_until(
    condition: Callable[[], bool], timeout: float = 120, *, pause: float = _PAUSE_SECONDS
) -> None:
    """`eventually` for where no event loop runs."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"Not within {timeout} s: {_text(condition)}")
        time.sleep(pause)


def _text(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except OSError:
        return repr(condition)
