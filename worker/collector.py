"""Python's garbage collector, kept out of what it only slows down."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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


def pass_over_what_is_there() -> None:
    """Have no later collection look at the objects that are there. Call it after the imports.

    They are hundreds of thousands, and each collection of all objects would stop the process for a
    tenth of a second.
    """
    gc.collect()
    gc.freeze()
