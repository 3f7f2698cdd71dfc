"""What a command's exit code says. Pure."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from shared.errors import BatchyardError, LimitError, TransientError
from shared.lifecycle import FINAL, Status


class ExitCode(IntEnum):
    """The codes of all commands; `MEANINGS` explains them."""

    DONE = 0
    BUG = 1
    WRONG_USE = 2
    ROWS_FAILED = 3
    BATCH_FAILED = 4
    ENDED_EARLY = 5
    NOT_ENDED = 6
    UNAVAILABLE = 7
    DAMAGED = 8
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "Done. Of a batch: every request has an answer.",
    ExitCode.BUG: "A bug in the command.",
    ExitCode.WRONG_USE: "Wrong use: an option, a file, a key or an id. The message says which.",
    ExitCode.ROWS_FAILED: "The batch completed, and some of its requests have an error.",
    ExitCode.BATCH_FAILED: "The batch failed as a whole, or `check` found that it would.",
    ExitCode.ENDED_EARLY: "The batch expired or was cancelled.",
    ExitCode.NOT_ENDED: "The batch has not ended, so its results are not complete.",
    ExitCode.UNAVAILABLE: "The gateway did not answer, or refused for now. Try again later.",
    ExitCode.DAMAGED: "`rebuild`, `fsck` or `doctor` is done and names the damage that it found.",
    ExitCode.INTERRUPTED: "Ctrl-C. Batches were left running, unless you chose to cancel them.",
    ExitCode.TERMINATED: "SIGTERM. Batches were left running.",
}
#: The most important first: the code of several batches is that of the worst.
_BY_IMPORTANCE = (
    ExitCode.BATCH_FAILED,
    ExitCode.ENDED_EARLY,
    ExitCode.NOT_ENDED,
    ExitCode.ROWS_FAILED,
)


def code_of(batch: Mapping[str, Any]) -> ExitCode:
    """What became of one batch."""
    match status := Status(batch["status"]):
        case Status.COMPLETED:
            failed = batch["request_counts"]["failed"]
            return ExitCode.ROWS_FAILED if failed else ExitCode.DONE
        case Status.FAILED:
            return ExitCode.BATCH_FAILED
        case _:
            return ExitCode.ENDED_EARLY if status in FINAL else ExitCode.NOT_ENDED


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The code of a command that had several outcomes."""
    found = set(codes)
    return next((code for code in _BY_IMPORTANCE if code in found), ExitCode.DONE)


def code_of_error(error: BatchyardError) -> ExitCode:
    """The code of a command that ended with this error."""
    if isinstance(error, TransientError | LimitError):
        return ExitCode.UNAVAILABLE
    return ExitCode.WRONG_USE
