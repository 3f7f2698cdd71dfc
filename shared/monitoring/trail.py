"""The trail: a JSON line for each act that changes something or reads contents, and who did it.

A line is written before its caller hears of the act. It holds ids and names, and never contents.
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

log = structlog.get_logger()

#: `refused` and `failed` acts have changed nothing, or may have: the caller is told to ask again.
Result = Literal["done", "refused", "failed"]
#: How an act came: a call, a message, or an operator's command.
Door = Literal["http", "bus", "cli"]

_STANDARD_OUTPUT = 1
_MODE = 0o600


class Act(NamedTuple):
    """One line. What is not known, or does not apply, is None."""

    #: A noun and what was done to it, as in `batch.cancelled`.
    act: str
    door: Door
    result: Result
    tenant: str | None = None
    #: The id of the API key that was used.
    key_id: str | None = None
    #: The operator's user on the machine where the command ran.
    operator: str | None = None
    #: The id or name of what the act is about.
    object: str | None = None
    #: The id of what it made out of that, such as a batch that retries another.
    made: str | None = None
    #: Why it was refused: an HTTP status, or codes.
    why: str | None = None
    #: The id of the call or message that asked for it.
    request_id: str | None = None


class Trail:
    """Writes acts to a file, or to standard output."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, act: Act) -> None:
        """Append the act's line. If that fails, the log has it as an error."""
        line = _line(act, at=datetime.now(UTC))
        try:
            _append(self._path, line)
        except OSError as error:
            # The act has happened, and undoing it could fail as well.
            log.error("trail.not_written", reason=error.strerror, **_told(act))  # noqa: TRY400  # no bug


def _append(path: Path | None, line: bytes) -> None:
    """One write a line: lines of several processes do not mix."""
    if path is None:
        os.write(_STANDARD_OUTPUT, line)
        return
    # Opened each time, so that a file that was moved away is begun anew.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _line(act: Act, *, at: datetime) -> bytes:
    written = {"at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **_told(act)}
    return json.dumps(written, separators=(",", ":")).encode() + b"\n"


def _told(act: Act) -> Mapping[str, str]:
    return {name: value for name, value in act._asdict().items() if value is not None}
