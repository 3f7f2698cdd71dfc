"""Python's interpreter in a process that serves: its pauses, and types that threads share."""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

#: A thread that wants to go on waits so long for one that computes, in seconds. With Python's own
#: 5 ms, an event loop beside a thread that computes takes tenths of a second for what has a few
#: dozen steps.
_SWITCH_SECONDS = 0.0005
#: The same while a row of a small batch is there: its way has a dozen steps in several threads.
#: All the time, it would cost an event loop that is always busy 6 % of what it does.
_SWITCH_SECONDS_IN_A_HURRY = 0.0001
#: How many more objects than before have the collector look at the youngest ones, and how many of
#: its looks have it look at older ones. A look at all of them takes a tenth of a second where
#: thousands of rows are on their way, and Python's own 700 have it come twice a second.
_YOUNG, _MIDDLE, _ALL = 10_000, 10, 10
#: The same where thousands of rows come and go by the hundred: they are so many objects at most.
_YOUNG_OF_ROWS = 1_000_000
#: How often it looks there in any case, in seconds.
_LOOK_SECONDS = 300.0
_OUR_PACKAGES = ("cli", "dispatcher", "gateway", "shared", "worker")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Import large libraries inside this.

    An import makes millions of objects that all stay. Collecting between them takes a fifth of the
    time that vLLM needs to be imported, and frees nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def prepare_to_serve() -> None:
    """Let this process hold nobody up, and its threads decode. Call it after the imports.

    No later collection looks at the objects that are there: they are hundreds of thousands, and
    each look would stop the process for a tenth of a second.
    """
    build_types()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _ALL)
    let_threads_take_turns()


def let_threads_take_turns(*, in_a_hurry: bool = False) -> None:
    """Let no thread of this process wait long for one that computes."""
    sys.setswitchinterval(_SWITCH_SECONDS_IN_A_HURRY if in_a_hurry else _SWITCH_SECONDS)


def build_types() -> None:
    """Have msgspec build our types now. Call it before a second thread decodes.

    It builds a type when it is first decoded, and another thread that decodes it meanwhile finds
    half of its fields: msgspec 0.22 ends the process then (segmentation fault).
    """
    found: list[type] = [msgspec.Struct]
    for type_ in found:
        found += type_.__subclasses__()
        if type_.__module__.partition(".")[0] in _OUR_PACKAGES:
            msgspec.json.Decoder(type_)


async def collect_seldom(seconds: float = _LOOK_SECONDS) -> None:
    """Have the collector look every so many seconds, and hardly ever in between; never returns.

    For a process that has thousands of rows, of a hundred objects each: they come and go together,
    and so every few hundred rows started a look at all that were there, which found nothing.
    """
    gc.set_threshold(_YOUNG_OF_ROWS, _MIDDLE, _ALL)
    while True:
        await asyncio.sleep(seconds)
        gc.collect()
