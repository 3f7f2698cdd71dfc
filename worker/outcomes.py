"""How the run of a slice can end, and what an error of the engine means for the slice. Pure."""

from enum import StrEnum
from typing import NamedTuple

from shared.dead_rows import DeadRow
from shared.slices import StrikeRange
from worker.engine_errors import EngineFailedError, EngineGoneError, EngineUnavailableError
from worker.rows import PartBody


class Outcome(StrEnum):
    """How a slice's run ended."""

    DONE = "done"
    #: The engine died with the slice in it.
    STRUCK = "struck"
    #: The engine never saw it.
    UNSEEN = "unseen"
    #: The engine cannot start at all.
    LANE_FAILED = "lane_failed"
    #: The input object is gone, or is not the one that was validated.
    INPUT_LOST = "input_lost"
    #: S3 cannot read the input object, although it reads others.
    INPUT_UNREAD = "input_unread"
    #: Its batch was paused.
    PAUSED = "paused"
    #: Its claim had ended before its rows went to the engine, or its result is durable already.
    SETTLED = "settled"

    @property
    def is_trouble(self) -> bool:
        """Whether the same would happen to a slice that is tried at once."""
        return self not in {Outcome.DONE, Outcome.PAUSED, Outcome.SETTLED}


class SliceResult(NamedTuple):
    """The result of a run."""

    outcome: Outcome
    #: The results of all rows that were answered, in this run or in an earlier one.
    body: PartBody
    #: The engine's own message, if it died or cannot start.
    reason: str = ""
    #: With STRUCK: all rows that were ever in an engine when it died.
    strike_ranges: tuple[StrikeRange, ...] = ()
    #: With STRUCK: at how many deaths in a row the lane fails. 0 does not count this death, because
    #: another slice of the same run stands for it.
    max_deaths: int = 0
    #: With `max_deaths`: whether the engine had answered any row before it died.
    gave_results: bool = False
    #: With `max_deaths`: whether only rows of this slice's tenant were in the engine.
    is_tenants_own: bool = False
    #: With DONE: the rows that got an error because engines died of them.
    dead: tuple[DeadRow, ...] = ()


def outcome(error: Exception) -> Outcome:
    """What an error of the engine means for a slice that had rows in the call."""
    match error:
        case EngineFailedError():
            return Outcome.LANE_FAILED
        case EngineUnavailableError():
            return Outcome.UNSEEN
        case _:
            # The engine died, or something else went wrong with these rows in it. The limits on
            # strikes bound both.
            return Outcome.STRUCK


def worst(errors: list[Exception]) -> Exception:
    """Of several errors of one run, the one that decides its outcome."""
    order = (Outcome.LANE_FAILED, Outcome.STRUCK, Outcome.UNSEEN)
    return min(errors, key=lambda error: order.index(outcome(error)))


def public_reason(error: Exception) -> str:
    """A safe description of the error: the text of a foreign one may contain prompts."""
    if isinstance(error, EngineFailedError | EngineGoneError | EngineUnavailableError):
        return str(error)
    return f"The engine could not answer: {type(error).__name__}."
