"""Damaged objects that a rebuild meets: each is named and set aside, and the rest goes on."""

from contextlib import suppress

from cli.rebuild.report import Damaged, Report
from shared.errors import BrokenObjectError, TransientError
from shared.ledger.kinds import kind_of
from shared.ledger.quarantine import keep_copy, set_aside
from shared.storage import Storage


class Damage:
    """Sets damaged objects aside."""

    def __init__(self, storage: Storage, report: Report) -> None:
        self._storage = storage
        self._report = report

    async def set_aside(self, error: BrokenObjectError, outcome: str) -> None:
        """Move the object out of the way. `outcome` says what becomes of what it was for."""
        moved = None
        # S3 may be unable to read it, and so to copy it: it stays where it is.
        with suppress(TransientError):
            moved = await set_aside(self._storage, error.key)
        self._report.add_damaged(_damaged(error, outcome, moved))

    async def keep_copy(self, error: BrokenObjectError, outcome: str) -> None:
        """Copy an object, of which others need the rest."""
        moved = None
        with suppress(TransientError):
            moved = await keep_copy(self._storage, error.key)
        self._report.add_damaged(_damaged(error, outcome, moved))

    def note(self, error: BrokenObjectError, outcome: str) -> None:
        """Name an object that is not there to be moved."""
        self._report.add_damaged(_damaged(error, outcome, None))


def _damaged(error: BrokenObjectError, outcome: str, moved_to: str | None) -> Damaged:
    return Damaged(error.key, kind_of(error.key) or "", error.reason, outcome, moved_to)
