"""A control group of the kernel, in which a process has as little memory as a test wants."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.eventually import wait_until
from tests.servers import absent

#: Of the first version and of the second: where memory is limited, and the file with the limit.
_PLACES = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)


@contextmanager
def starved(pid: int, *, size: int) -> Iterator[None]:
    """The process gets so many more bytes at most, and is killed by the kernel for the next one."""
    name = f"batchyard-{secrets.token_hex(4)}"
    for root, limit in _PLACES:
        group = root / name
        with suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                break
            group.rmdir()
    else:
        absent("control group for memory, which needs root", "PATH")
    try:
        (group / limit).write_text(str(size))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        with suppress(OSError):
            (group / limit).write_text(str(1 << 40))
        for survivor in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(survivor)
        wait_until(lambda: _is_removed(group), 60)


def _is_removed(group: Path) -> bool:
    """A group can be removed once its last process is gone."""
    with suppress(OSError):
        os.rmdir(group)  # noqa: PTH106  # what is in it are files of the kernel
    return not group.exists()
