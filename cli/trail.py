"""The lines of the trail that operators' commands write."""

import getpass
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import BatchyardError
from shared.monitoring.trail import Act, Result, Trail

_VARIABLE = "BATCHYARD_TRAIL_FILE"
#: In the folder of `batchyard up`, whose processes write there as well.
TRAIL_FILE = "trail.jsonl"
_STANDARD_ERROR = Path("/dev/stderr")


class Told:
    """The act of one command, which may be about several objects."""

    def __init__(self, trail: Trail, act: str, tenant: str | None) -> None:
        self._trail = trail
        self._act = act
        #: A command may learn it only while it runs.
        self.tenant = tenant

    def done(self, about: str, *, made: str | None = None) -> None:
        """Write that it has happened to this object, and which one came of it."""
        self.write("done", about, made=made)

    def write(
        self, result: Result, about: str | None, *, made: str | None = None, why: str | None = None
    ) -> None:
        """Write one line."""
        operator = _operator()
        self._trail.write(
            Act(self._act, "cli", result, self.tenant, None, operator, about, made, why)
        )


@contextmanager
def told(
    run_dir: Path, act: str, *, tenant: str | None = None, about: str | None = None
) -> Iterator[Told]:
    """Write to the trail that the act has happened to `about`, or why the block broke off.

    Without `about`, the block tells of each object. The lines go where BATCHYARD_TRAIL_FILE says,
    else into the folder of the fleet if there is one, and otherwise to standard error, because what
    a command prints is for its user.
    """
    found = Told(Trail(_place(run_dir)), act, tenant)
    try:
        yield found
    except BatchyardError as error:
        found.write("refused", about, why=type(error).__name__)
        raise
    except BaseException as error:
        found.write("failed", about, why=type(error).__name__)
        raise
    if about is not None:
        found.done(about)


def _place(run_dir: Path) -> Path:
    if given := os.environ.get(_VARIABLE):
        return Path(given)
    return run_dir / TRAIL_FILE if run_dir.is_dir() else _STANDARD_ERROR


def _operator() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return str(os.getuid())
