"""Which processes there are, as others start and end."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil


def below_this(part: str) -> list[psutil.Process]:
    """The processes below this one that have `part` in their command lines."""
    found = []
    for child in psutil.Process().children(recursive=True):
        # One that ends meanwhile is not there any more.
        with suppress(psutil.NoSuchProcess):
            found += [child] if part in " ".join(child.cmdline()) else []
    return found


def connections(process: psutil.Process) -> Iterator[Any]:
    """The sockets of the internet's protocols that it has; none of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        yield from process.net_connections("inet")
