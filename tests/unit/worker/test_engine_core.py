"""What vLLM's core is told with each sequence; a class of this file stands for vLLM's client."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from shared.ordering.work import Work
from worker.engine_core import attend
from worker.engine_numbers import CoreMeter
from worker.engine_seats import Capacity
from worker.entrance import Entrance
from worker.live_control import MOST_PROMPT_TOKENS, Goals, Yielding
from worker.progress import Progress
from worker.step_limit import FREE, headers

#: A window that closes ten minutes from the start.
WORK = Work("batch", 0, "acme", 0, 0, 600, 10, cache_salt="salt")


class Core:
    """vLLM's client of its core, as far as it is used."""

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.utility_results: dict[int, asyncio.Future[Any]] = {}

    async def add_request_async(self, request: Any) -> None:
        self.added.append(request)

    async def abort_requests_async(self, ids: list[str]) -> None:
        raise NotImplementedError

    async def get_output_async(self) -> Any:
        raise NotImplementedError


def a_request(id_: str) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=id_,
        prompt_token_ids=[1, 2],
        sampling_params=None,
        mm_features=None,
        priority=0,
        cache_salt=None,
        trace_headers={"traceparent": "00-1"},
    )


async def told(entrance: Entrance) -> list[Any]:
    """What the core gets: a live call, and a row of a batch."""
    core = Core()
    attend(core, entrance, Progress(60), CoreMeter())
    with entrance.entered_live("acme", "salt"):
        await core.add_request_async(a_request("live"))
    async with entrance.entered(WORK):
        await core.add_request_async(a_request("row"))
    return core.added


@pytest.mark.parametrize(
    ("deadline_seconds", "tokens"), [(None, MOST_PROMPT_TOKENS), (900.0, FREE)]
)
async def test_the_core_is_told_of_live_calls_and_of_the_limit_unless_a_window_closes(
    deadline_seconds: float | None, tokens: int
) -> None:
    entrance = Entrance(
        Capacity(seats=4, spare_seats=0, spare_kv=0.1, live_seats=1),
        count(10.0).__next__,
        Goals(ttft=1.0),
        Yielding(deadline_seconds=deadline_seconds),
    )

    live, row = await told(entrance)

    mine = {"traceparent": "00-1"}
    assert live.trace_headers == {**mine, **headers(MOST_PROMPT_TOKENS, is_live=True)}
    assert live.priority < row.priority
    assert row.trace_headers == {**mine, **headers(tokens, is_live=False)}


async def test_an_engine_without_live_calls_is_told_nothing() -> None:
    entrance = Entrance(Capacity(seats=4, spare_seats=0, spare_kv=0.1))

    live, row = await told(entrance)

    assert live.trace_headers == row.trace_headers == {"traceparent": "00-1"}


async def test_whoever_has_asked_a_core_something_learns_that_it_is_dead() -> None:
    core = Core()
    asked = core.utility_results[1] = asyncio.get_running_loop().create_future()
    attend(core, Entrance(Capacity(4, 0, 0.0)), Progress(60), CoreMeter())

    with pytest.raises(NotImplementedError):
        await core.get_output_async()

    assert isinstance(asked.exception(), NotImplementedError)
