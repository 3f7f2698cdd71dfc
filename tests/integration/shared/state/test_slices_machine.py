"""Slices on a real Redis, compared with a model in Python: nothing is lost or done twice."""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis

from shared.errors import InvalidTransitionError
from shared.lifecycle import FINAL, Event, Status
from shared.slices import Claim, ReleaseReason, StrikeRange
from shared.state import State
from tests.batches import JOB, LANE, ROWS_A_SLICE, dead_row, feed, in_progress, part

T = TypeVar("T")

#: Of each commit's run; the variable makes a longer one.
_FEW = 40
_EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", _FEW))
OTHER_LANE = "other@gpu"
LANES = (LANE, OTHER_LANE)
_ENDINGS = {Status.FINALIZING: Event.OUTPUT_COMMITTED, Status.CANCELLING: Event.CANCEL_COMMITTED}


@dataclass
class _Slice:
    """Where a slice is: pending, ready, among the suspects, claimed, committed, or given up."""

    lane: str
    place: str = "pending"
    epoch: int = 0
    strikes: int = 0
    doubts: tuple[StrikeRange, ...] = ()
    is_inflight: bool = False
    committed_by: int = 0
    failed: int = 0

    @property
    def line(self) -> str:
        """Where it waits for its turn: apart, once an engine died with it."""
        return "suspect" if self.strikes else "ready"


@dataclass
class _Batch:
    slices: list[_Slice]
    status: Status = Status.IN_PROGRESS
    is_paused: bool = False
    is_closed: bool = False
    completed: int = 0
    failed: int = 0
    deaths: int = 0
    lost_lanes: set[str] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def lanes(self) -> list[str]:
        return [lane for lane in LANES if any(slice_.lane == lane for slice_ in self.slices)]

    @property
    def is_mixed(self) -> bool:
        return len(self.lanes) > 1

    def left(self, lane: str) -> list[_Slice]:
        """What is still to be done on the lane."""
        return [
            slice_
            for slice_ in self.slices
            if slice_.lane == lane and slice_.place not in ("committed", "given up", "lost")
        ]

    @property
    def is_done(self) -> bool:
        return not any(self.left(lane) for lane in LANES)

    def move_to(self, status: Status) -> None:
        self.status = status
        self.events[f"batch.{status}"] += 1


class _Machine(RuleBasedStateMachine):
    def __init__(self, redis_url: str) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._namespace = f"{{test-{secrets.token_hex(4)}}}:"
        self._redis: Redis = Redis.from_url(redis_url, decode_responses=True)
        self._state = State(redis_url, namespace=self._namespace)
        self._batches: dict[str, _Batch] = {}
        self._claims: list[Claim] = []
        self._deaths = dict.fromkeys(LANES, 0)
        self._dead: set[str] = set()
        self._interruptions = 0
        for lane in LANES:
            self._run(self._state.lanes.open_job(lane, "", JOB))

    def teardown(self) -> None:
        try:
            for batch_id in self._batches:
                self._check_events(batch_id)
        finally:
            self._run(self._close())
            self._loop.close()

    @initialize(slices=st.integers(2, 4))
    def begin(self, slices: int) -> None:
        self.plan(slices, LANES)

    @precondition(lambda self: len(self._batches) < 4)
    @rule(slices=st.integers(2, 4), lanes=st.sampled_from([LANES, LANES[:1], LANES[1:]]))
    def plan(self, slices: int, lanes: tuple[str, ...]) -> None:
        batch_id = self._run(in_progress(self._state, slices=slices, lane=" ".join(lanes)))
        self._batches[batch_id] = _Batch([_Slice(lanes[n % len(lanes)]) for n in range(slices)])

    @precondition(lambda self: self._some("pending"))
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        batch_id = data.draw(st.sampled_from([batch_id for batch_id, _ in self._some("pending")]))
        batch = self._batches[batch_id]

        for lane in batch.lanes:
            # Those of the other lane are not taken.
            self._run(feed(self._state, batch_id, slices=len(batch.slices), lane=lane))

        for slice_ in batch.slices:
            if slice_.place == "pending" and not batch.is_paused:
                slice_.place = slice_.line

    @precondition(lambda self: self._batches)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        batch_id, batch = self._any_batch(data)
        is_open = batch.status is Status.IN_PROGRESS

        refused = self._run(self._state.controls.pause(batch_id))

        assert refused is (None if is_open else batch.status)
        if is_open:
            batch.events["batch.paused"] += not batch.is_paused
            batch.is_paused = True
            self._park(batch)

    @precondition(lambda self: any(batch.is_paused for batch in self._batches.values()))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        batch_id, batch = self._any_batch(data)
        is_open = batch.status is Status.IN_PROGRESS

        refused = self._run(self._state.controls.resume(batch_id))

        assert refused is (None if is_open else batch.status)
        if is_open:
            batch.events["batch.resumed"] += batch.is_paused
            batch.is_paused = False

    @precondition(lambda self: self._batches)
    @rule(data=st.data(), priority=st.integers(0, 9))
    def amend(self, data: st.DataObject, priority: int) -> None:
        batch_id, batch = self._any_batch(data)
        before = self._run(self._state.batches.get(batch_id)).number("priority")

        self._run(self._state.controls.amend(batch_id, priority=priority))

        if batch.status is Status.IN_PROGRESS and priority != before:
            batch.events["batch.updated"] += 1
            self._park(batch)

    @precondition(lambda self: self._some("ready"))
    @rule(slices=st.integers(1, 4), lane=st.sampled_from(LANES))
    def claim(self, slices: int, lane: str) -> None:
        ready = self._some("ready", lane)

        got = self._run(
            self._state.claims.take(lane, JOB, lease_seconds=60, slices=slices, rows=1000)
        )

        assert len(got) == min(slices, len(ready))
        self._take(got, ready)

    @precondition(lambda self: self._some("suspect"))
    @rule(rows=st.integers(0, 25), lane=st.sampled_from(LANES))
    def claim_suspects(self, rows: int, lane: str) -> None:
        suspects = self._some("suspect", lane)

        got = self._run(self._state.claims.take_suspects(lane, JOB, lease_seconds=60, rows=rows))

        assert len(got) == min(max(1, rows // ROWS_A_SLICE), len(suspects))
        self._take(got, suspects)

    @precondition(lambda self: self._claims)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self._claims), min_size=1, unique=True))

        for lane in LANES:
            held = [one for one in some if one.lane == lane]

            abandoned = self._run(self._state.claims.renew(held, lease_seconds=60))

            assert abandoned == [
                one
                for one in held
                if not self._is_current(one)
                or self._batches[one.batch_id].status is not Status.IN_PROGRESS
            ]

    @precondition(lambda self: self._claims)
    @rule(data=st.data(), failed=st.integers(0, 10), dead=st.integers(0, 10))
    def commit(self, data: st.DataObject, failed: int, dead: int) -> None:
        claim = data.draw(st.sampled_from(self._claims))
        batch, slice_ = self._batches[claim.batch_id], self._slice(claim)
        if slice_.place == "committed":
            # A repeat of one's own brings the same part again.
            failed = slice_.failed
            expected = "ok" if slice_.committed_by == claim.epoch else "committed"
        elif slice_.epoch != claim.epoch or slice_.place == "given up":
            expected = "fenced"
        elif batch.status in FINAL or (
            batch.status is not Status.IN_PROGRESS and not slice_.is_inflight
        ):
            expected = "closed"
        else:
            expected = "ok"
            slice_.place, slice_.is_inflight, slice_.committed_by = "committed", False, claim.epoch
            slice_.failed = failed
            batch.completed += claim.slice.rows - failed
            batch.failed += failed
            self._dead |= {dead_row(claim, row).id for row in range(dead)}
            if dead < claim.slice.rows:
                self._deaths[claim.lane] = 0
            if batch.status is Status.IN_PROGRESS and batch.is_done:
                batch.move_to(Status.FINALIZING)

        rows = [dead_row(claim, row) for row in range(dead)]
        outcome = self._run(self._state.claims.commit(claim, part(claim, failed=failed), dead=rows))

        assert outcome == expected

    @precondition(lambda self: self._committed())
    @rule(data=st.data())
    def lose_part(self, data: st.DataObject) -> None:
        """The bytes of a committed part are found to be wrong."""
        batch_id, index = data.draw(st.sampled_from(self._committed()))
        batch = self._batches[batch_id]
        slice_ = batch.slices[index]
        committed = self._run(self._state.slices.parts(batch_id))[index]
        if batch.status in FINAL:
            expected = "changed"
        else:
            batch.completed -= ROWS_A_SLICE - slice_.failed
            batch.failed -= slice_.failed
            is_given_up = slice_.lane in batch.lost_lanes
            is_closing = batch.is_closed or batch.status is Status.CANCELLING
            expected = "lost" if is_given_up or is_closing else "again"
            slice_.place = "given up" if is_given_up else "lost" if is_closing else "pending"
            if expected == "again" and batch.status is Status.FINALIZING:
                batch.move_to(Status.IN_PROGRESS)

        for outcome in (expected, "changed"):
            dropped = self._run(self._state.claims.drop_part(batch_id, index, committed))
            assert dropped == outcome

    @precondition(lambda self: self._claims)
    @rule(data=st.data(), strikes=st.integers(0, 1))
    def release(self, data: st.DataObject, strikes: int) -> None:
        claim = data.draw(st.sampled_from(self._claims))
        is_current = self._is_current(claim)

        released = self._run(self._state.claims.release(claim, strikes=strikes))

        assert released == is_current
        if released:
            self._strike(claim, strikes, ())
            self._give_back(claim.batch_id, claim.index)

    @precondition(lambda self: self._inflight())
    @rule(lane=st.sampled_from(LANES), counted=st.booleans(), end=st.integers(1, ROWS_A_SLICE))
    def die(self, lane: str, counted: bool, end: int) -> None:
        """The lane's engine dies with all in it; its job lives to tell."""
        held = [one for one in self._claims if one.lane == lane and self._is_current(one)]
        for place, claim in enumerate(held):
            doubts = (*claim.strike_ranges, StrikeRange(0, end, claim.strikes + 1))
            is_told = counted and place == 0

            released = self._run(
                self._state.claims.release(
                    claim,
                    strikes=1,
                    reason=ReleaseReason.ENGINE_DIED,
                    strike_ranges=doubts,
                    last_words="It died.",
                    max_deaths=1000 * is_told,
                )
            )

            assert released
            if self._strike(claim, 1, doubts) and is_told:
                self._batches[claim.batch_id].deaths += 1
                self._deaths[lane] += 1
            self._give_back(claim.batch_id, claim.index)

    @precondition(lambda self: self._inflight())
    @rule(lane=st.sampled_from(LANES))
    def reap(self, lane: str) -> None:
        held = self._inflight(lane)
        assert self._run(self._state.claims.reap(lane)) == 0

        reaped = self._run(self._state.claims.reap(lane, all_claims=True))

        assert reaped == len(held)
        for batch_id, index in held:
            self._give_back(batch_id, index)

    @precondition(lambda self: len(self._claims) > 2 * self._interruptions)
    @rule(data=st.data())
    def fail_lane(self, data: st.DataObject) -> None:
        self._interruptions += 1
        batch_id, batch = self._any_batch(data)
        lane = data.draw(st.sampled_from(batch.lanes))
        failing = self._state.fail_lane(lane, batch_id, "no memory", {"first_error": "no memory"})

        if batch.status is Status.FAILED:
            assert not self._run(failing)
        elif batch.status is not Status.IN_PROGRESS:
            with pytest.raises(InvalidTransitionError):
                self._run(failing)
        elif not batch.is_mixed:
            assert self._run(failing)
            batch.move_to(Status.FAILED)
        else:
            assert self._run(failing) is (lane not in batch.lost_lanes)
            batch.lost_lanes.add(lane)
            for slice_ in batch.left(lane):
                slice_.place, slice_.is_inflight = "given up", False
            if batch.is_done:
                batch.move_to(Status.FINALIZING)

    # Rarely, so that most batches live long enough for something to happen to them.
    @precondition(lambda self: len(self._claims) > 2 * self._interruptions)
    @rule(
        data=st.data(),
        event=st.sampled_from([Event.CANCEL_REQUESTED, Event.WINDOW_CLOSED, Event.LANE_FAILED]),
    )
    def interrupt(self, data: st.DataObject, event: Event) -> None:
        self._interruptions += 1
        batch_id, batch = self._any_batch(data)
        target = {
            Event.CANCEL_REQUESTED: Status.CANCELLING,
            Event.WINDOW_CLOSED: Status.FINALIZING,
            Event.LANE_FAILED: Status.FAILED,
        }[event]
        is_legal = batch.status is Status.IN_PROGRESS or (
            event is Event.CANCEL_REQUESTED and batch.status is Status.FINALIZING
        )
        fields = {"window_closed": 1} if event is Event.WINDOW_CLOSED else {}
        if batch.status is target:
            assert not self._run(self._state.apply(batch_id, event, fields))
        elif is_legal:
            assert self._run(self._state.apply(batch_id, event, fields))
            batch.move_to(target)
            batch.is_closed |= event is Event.WINDOW_CLOSED
        else:
            with pytest.raises(InvalidTransitionError):
                self._run(self._state.apply(batch_id, event))

    @precondition(
        lambda self: any(b.status is not Status.IN_PROGRESS for b in self._batches.values())
    )
    @rule(data=st.data())
    def conclude(self, data: st.DataObject) -> None:
        batch_id, batch = self._any_batch(data)
        event = _ENDINGS.get(batch.status, Event.OUTPUT_COMMITTED)
        ending = self._state.conclude(batch_id, event, files=[], fields={})

        if batch.status in _ENDINGS and not any(slice_.is_inflight for slice_ in batch.slices):
            assert self._run(ending)
            batch.move_to(Status.COMPLETED if event is Event.OUTPUT_COMMITTED else Status.CANCELLED)
        elif batch.status is Status.COMPLETED:
            assert not self._run(ending)
        else:
            with pytest.raises(InvalidTransitionError):
                self._run(ending)

    @invariant()
    def every_record_is_as_the_model_says(self) -> None:
        for record in self._run(self._state.batches.many(list(self._batches))):
            batch = self._batches[record.id]
            committed = [slice_ for slice_ in batch.slices if slice_.place == "committed"]
            assert record.status is batch.status
            assert record.number("completed") == batch.completed
            assert record.number("failed") == batch.failed
            assert record.number("slices_committed") == len(committed)
            assert record.number("engine_deaths") == batch.deaths
            assert record.number("completed") + record.number("failed") == 10 * len(committed)
            given_up = [slice_ for slice_ in batch.slices if slice_.place == "given up"]
            assert record.number("given_up") == ROWS_A_SLICE * len(given_up)
            for lane in batch.lanes if batch.is_mixed and batch.status not in FINAL else ():
                assert record.number(f"slices_left:{lane}") == len(batch.left(lane))
                assert record.number(f"rows_left:{lane}") == ROWS_A_SLICE * len(batch.left(lane))

    @invariant()
    def every_slice_of_a_running_batch_is_in_exactly_one_place(self) -> None:
        lists, rest, deaths, dead = self._run(self._look())
        assert {lane: int(number or 0) for lane, number in zip(LANES, deaths, strict=True)} == (
            self._deaths
        )
        assert set(dead) == self._dead
        places_of = {LANE: lists[:4], OTHER_LANE: lists[4:]}
        for lane, (_, _, _, active) in places_of.items():
            # A lane has the batches that it has work for.
            assert set(active) == {
                batch_id
                for batch_id, batch in self._batches.items()
                if batch.status is Status.IN_PROGRESS and not batch.is_paused and batch.left(lane)
            }
        for batch_id, batch in self._batches.items():
            first_pending, other_pending, parts, inflight = (rest.pop(0) for _ in range(4))
            for index, slice_ in enumerate(batch.slices):
                member = f"{batch_id}:{index}"
                ready, suspects, claims, _ = places_of[slice_.lane]
                pending = first_pending if slice_.lane == batch.lanes[0] else other_pending
                assert (member in claims) == (str(index) in inflight) == slice_.is_inflight
                assert (str(index) in parts) == (slice_.place == "committed")
                if batch.status is Status.IN_PROGRESS:
                    places = {
                        "pending": str(index) in pending,
                        "ready": member in ready,
                        "suspect": member in suspects,
                        "claimed": member in claims,
                        "committed": str(index) in parts,
                    }
                    assert [place for place, is_there in places.items() if is_there] == (
                        [] if slice_.place == "given up" else [slice_.place]
                    )

    async def _look(self) -> tuple[list[Any], list[Any], list[Any], list[str]]:
        """Each lane's lines, claims and active; each batch's pending, committed and inflight.

        Then each lane's deaths in a row, and the dead rows.
        """
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in LANES:
                for kind in ("ready", "suspects", "claims", "active"):
                    pipe.zrange(f"{self._namespace}lane:{lane}:{kind}", 0, -1)
            for batch_id in self._batches:
                pipe.zrange(f"{self._namespace}pending:{batch_id}:p", 0, -1)
                pipe.zrange(f"{self._namespace}pending:{batch_id}:p:{OTHER_LANE}", 0, -1)
                pipe.hkeys(f"{self._namespace}parts:{batch_id}")
                pipe.smembers(f"{self._namespace}inflight:{batch_id}")
            for lane in LANES:
                pipe.hget(f"{self._namespace}lane:{lane}:job", "deaths")
            pipe.zrange(f"{self._namespace}dead-rows-since", 0, -1)
            answers: list[Any] = await pipe.execute()
        return answers[:8], answers[8:-3], answers[-3:-1], answers[-1]

    def _check_events(self, batch_id: str) -> None:
        entries = self._run(self._state.outbox.read("events", limit=10_000, wait_seconds=0))
        own = [entry for entry in entries if entry.snapshot()["id"] == batch_id]
        types = Counter(entry.fields["type"] for entry in own)
        batch = self._batches[batch_id]
        sequences = [int(entry.fields["sequence"]) for entry in own]
        assert sequences == sorted(set(sequences))
        assert sum(types[f"batch.{status}"] for status in FINAL) == (batch.status in FINAL)
        expected = batch.events + Counter({"batch.accepted": 1, "batch.in_progress": 1})
        # Progress is never among them.
        assert +expected == types

    def _any_batch(self, data: st.DataObject) -> tuple[str, _Batch]:
        batch_id = data.draw(st.sampled_from(sorted(self._batches)))
        return batch_id, self._batches[batch_id]

    def _slice(self, claim: Claim) -> _Slice:
        return self._batches[claim.batch_id].slices[claim.index]

    def _is_current(self, claim: Claim) -> bool:
        slice_ = self._slice(claim)
        return slice_.is_inflight and slice_.epoch == claim.epoch

    def _some(self, place: str, lane: str | None = None) -> list[tuple[str, int]]:
        """The slices of running batches that are in `place`, of one lane or of both."""
        return [
            (batch_id, index)
            for batch_id, batch in self._batches.items()
            for index, slice_ in enumerate(batch.slices)
            if batch.status is Status.IN_PROGRESS and slice_.place == place
            if lane in (None, slice_.lane)
        ]

    def _inflight(self, lane: str | None = None) -> list[tuple[str, int]]:
        return [
            (batch_id, index)
            for batch_id, batch in self._batches.items()
            for index, slice_ in enumerate(batch.slices)
            if slice_.is_inflight and lane in (None, slice_.lane)
        ]

    def _committed(self) -> list[tuple[str, int]]:
        return [
            (batch_id, index)
            for batch_id, batch in self._batches.items()
            for index, slice_ in enumerate(batch.slices)
            if slice_.place == "committed"
        ]

    def _give_back(self, batch_id: str, index: int) -> None:
        slice_ = self._batches[batch_id].slices[index]
        slice_.is_inflight = False
        slice_.place = "pending" if self._batches[batch_id].is_paused else slice_.line

    def _take(self, got: list[Claim], line: list[tuple[str, int]]) -> None:
        for one in got:
            assert (one.batch_id, one.index) in line
            slice_, batch = self._slice(one), self._batches[one.batch_id]
            assert (one.epoch, one.strikes) == (slice_.epoch + 1, slice_.strikes)
            assert (one.strike_ranges, one.engine_deaths) == (slice_.doubts, batch.deaths)
            slice_.place, slice_.epoch, slice_.is_inflight = "claimed", one.epoch, True
        self._claims += got

    def _strike(self, claim: Claim, strikes: int, doubts: tuple[StrikeRange, ...]) -> bool:
        """Nothing is added to a batch that has ended."""
        if self._batches[claim.batch_id].status in FINAL:
            return False
        slice_ = self._slice(claim)
        slice_.strikes += strikes
        slice_.doubts = doubts or slice_.doubts
        return True

    def _park(self, batch: _Batch) -> None:
        for slice_ in batch.slices:
            if slice_.place in ("ready", "suspect"):
                slice_.place = "pending"

    async def _close(self) -> None:
        if keys := [key async for key in self._redis.scan_iter(match=f"{self._namespace}*")]:
            await self._redis.delete(*keys)
        await self._redis.aclose()
        await self._state.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)


@pytest.mark.timeout(120 * max(1, _EXAMPLES // _FEW))
def test_slices_are_never_lost_and_never_committed_twice(redis_url: str) -> None:
    run_state_machine_as_test(
        lambda: _Machine(redis_url),  # type: ignore[arg-type]  # any callable will do
        settings=settings(
            max_examples=_EXAMPLES,
            stateful_step_count=40 if _EXAMPLES == _FEW else 50,
            deadline=None,
            derandomize=_EXAMPLES == _FEW,
            # Shrinking a failure would outlast the test's timeout; its steps are printed as is.
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
