"""Which processes there are, as others start and end."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil


def below_this(part: str, *, directly: bool = False) -> list[psutil.Process]:
    """The processes below this one, or `directly` below it, with `part` in their command lines."""
    children = psutil.Process().children(recursive=not directly)
    return [one for one in children if part in command(one)]


def command(process: psutil.Process) -> str:
    """Its command line; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def environment(process: psutil.Process) -> dict[str, str]:
    """Its environment; empty if it has ended, or nobody may see it."""
    with suppress(psutil.Error):
        return process.environ()
    return {}


def variable(process: psutil.Process, name: str) -> str:
    """What its environment has under the name; empty if there is none, or nobody may see it."""
    return environment(process).get(name, "")


def connections(process: psutil.Process) -> Iterator[Any]:
    """The sockets of the internet's protocols that it has; none of one that has ended."""
    with suppress(psutil.NoSuchProcess):
        yield from process.net_connections("inet")
