"""What the dispatcher logs of a batch names the batch's trace, also when it breaks on it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from structlog.contextvars import get_contextvars, merge_contextvars
from structlog.testing import capture_logs

from dispatcher.duties import Duties
from dispatcher.remaker import Remaker
from dispatcher.rounds import Rounds
from dispatcher.windows import Windows
from shared.state import State
from tests.batches import claim, feed, in_progress
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import BatchYard

_TRACE = "a" * 32
_PARENT = f"00-{_TRACE}-{'b' * 16}-01"


@contextmanager
def _logged() -> Iterator[list[Any]]:
    with capture_logs(processors=[merge_contextvars]) as lines:
        yield lines


def _traces(lines: list[Any], event: str) -> list[str | None]:
    return [line.get("trace_id") for line in lines if line["event"] == event]


async def test_a_window_that_closes_and_claims_that_are_taken_back_name_the_trace(
    state: State,
) -> None:
    batch_id = await in_progress(state, slices=2, expires_at=1, traceparent=_PARENT)
    await feed(state, batch_id, slices=2)
    await claim(state, slices=2)

    with _logged() as lines:
        await Windows(state, grace_seconds=0).close()

    assert _traces(lines, "batch.window_closed") == [_TRACE]
    assert _traces(lines, "claims.taken_back") == [_TRACE]
    assert get_contextvars() == {}


async def test_a_duty_that_breaks_on_a_batch_names_the_trace_and_so_does_the_next_try(
    state: State, yard: BatchYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = await in_progress(state, traceparent=_PARENT)
    rounds = Rounds(
        state,
        planner=yard.planner,
        finaliser=yard.finaliser,
        remaker=Remaker(state, yard.storage),
        lanes=None,  # type: ignore[arg-type]  # no lane has a duty
    )
    duties = Duties()

    async def bug(*_: object) -> None:
        raise ZeroDivisionError

    with _logged() as lines:
        with monkeypatch.context() as broken:
            broken.setattr(state.remakes, "settle", bug)
            duties.start(batch_id, rounds.remake, nullcontext())
            await eventually(lambda: bool(_traces(lines, "dispatcher.duty_broke")))
        await duties.end()
        duties.start(batch_id, rounds.remake, nullcontext())
        await eventually(lambda: bool(_traces(lines, "results.remade")))
    await duties.end()

    assert _traces(lines, "dispatcher.duty_broke") == [_TRACE]
    assert _traces(lines, "results.remade") == [_TRACE]
    assert get_contextvars() == {}
