"""The engine of a lane: Ray's own LLM server with one more method, which answers request lines."""

import asyncio
import hashlib
import math
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import structlog
from msgspec import structs

from shared.adapters import adapter_named
from shared.catalog import Model, Pool
from shared.doors import Door
from shared.engines import ReplicaNumbers
from shared.errors import SetupError
from shared.interpreter import collect_seldom, collector_paused, prepare_to_serve
from shared.monitoring.log import configure_own
from shared.ordering.work import Work
from worker.adapter_loader import VllmLoader
from worker.adapter_shelf import AdapterShelf, unknown
from worker.answers import Answers
from worker.catalog_adapters import answers_of_unloaded, load_each_alone
from worker.core_life import CoreLife, while_core_lives
from worker.core_sequences import gather_sequences
from worker.drain import Drain, before_stop
from worker.engine_bounds import refuse_killers
from worker.engine_config import llm_config
from worker.engine_core import attend
from worker.engine_endpoints import require_endpoints
from worker.engine_environment import runs_in_core_process
from worker.engine_errors import (
    Answer,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
    EngineYieldsError,
    Result,
    Results,
)
from worker.engine_front import keep_environment, stop_statistics
from worker.engine_numbers import CoreMeter
from worker.engine_results import SERVER_ERROR
from worker.engine_seats import Capacity
from worker.engine_stages import StageClock
from worker.engine_start import adapted_engine_class, skip_telemetry
from worker.engine_variables import (
    DRAIN_SECONDS_VARIABLE,
    HANG_SECONDS_VARIABLE,
    LIVE_GOALS_VARIABLE,
    LIVE_PORTS_VARIABLE,
    LIVE_SEATS_VARIABLE,
    LIVE_YIELDING_VARIABLE,
    SHARE_VARIABLE,
    SPARE_KV_VARIABLE,
    SPARE_SEATS_VARIABLE,
)
from worker.entrance import Entrance, GivenBackError, Guest, WithdrawnError
from worker.few_at_a_time import Few
from worker.fork_server import ForkServer
from worker.front_count import fronts_here
from worker.fronts import FrontGoneError, Fronts
from worker.grammar_gate import GrammarGate, needs_trials, tokenizer_description
from worker.grammars import grammars, may_have_grammars
from worker.leftovers import logs_of_ray, sweep_leftovers
from worker.live_calls import LiveCalls
from worker.live_control import Goals, Yielding
from worker.live_door import LiveDoor
from worker.live_scaling import LIVE_METRIC, NEEDED_METRIC
from worker.media_connector import register_media_connector
from worker.openai_layer import OpenAILayer
from worker.progress import Progress
from worker.row_groups import GROUP_SECONDS, VECTORS_GROUP_SECONDS, in_groups
from worker.row_requests import Request, RowAnswer, answer_of, request_of
from worker.row_rules import refused, rules_from
from worker.step_limit import Group
from worker.tokenizer_copies import share_vocabularies

with collector_paused():
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.llm import LLMServer
    from ray.util import get_node_ip_address

log = structlog.get_logger()

#: An engine has few lines of its own, and none of the fleet's settings.
_LOG_LEVEL = "INFO"
#: How often the engine's progress is checked, in seconds.
_CHECK_SECONDS = 1.0
#: How often it is looked whether rows of a dead core have left, in seconds.
_LOOK_SECONDS = 0.05
#: How long vLLM may take to notice that its processes are dead, in seconds.
_DEATH_SECONDS = 30.0
#: How long live calls of a dead core may tell their clients so, in seconds: one that does not read
#: would keep the next core from all others.
_LAST_WORD_SECONDS = 2.0
#: A core that restarts may take so many times as long as the first start of its replica.
_STARTS = 3
#: How long it holds what the lane job says that batches need: longer than it says nothing.
_NEEDED_SECONDS = 60.0
#: Answers are kept for as long as the claims of a dead lane job take to run out, and a new one to
#: start, several times over.
_KEPT_SECONDS, _KEPT_BYTES = 600.0, 128 * 1024 * 1024
#: How long a line may be that is rendered beside the event loop of all rows: a few thousand tokens,
#: in some milliseconds.
_QUICK_BYTES = 8 * 1024


#: What names a row for as long as its answer is kept: batch, number, and a digest of the line.
_Row = tuple[str, int, bytes, int]
#: A row that runs: its result, or why it has none here.
_Run = asyncio.Future[Result | FrontGoneError | GivenBackError | None]


class BatchServer(LLMServer):
    """One replica of an engine."""

    #: Set before the constructor runs: the replica has started long before.
    clock: StageClock
    #: What forks the core, and the fronts; None where the core is spawned, until there are fronts.
    forks: ForkServer | None

    async def __init__(self, model: str, pool: str) -> None:  # type: ignore[misc]  # as Ray's
        """For a model and a pool of the catalog, as JSON."""
        self._model = Model.model_validate_json(model)
        self._front_count = fronts_here(self._model)
        placed = Pool.model_validate_json(pool)
        self._in_core = runs_in_core_process(self._model, placed)
        await super().__init__(llm_config(self._model, placed))

    async def start(self) -> None:
        """Load the model. Ray's constructor calls this once."""
        began_at = time.monotonic()
        configure_own("engine", _LOG_LEVEL)
        config: Any = self._llm_config  # Ray's annotations allow None, which it never is
        source = Path(config.model_loading_config.model_source)
        if source.is_absolute():
            # There is nothing to download, and the task that looks would import vLLM first.
            config.get_or_create_callback().ctx.run_init_node = False
        skip_telemetry()
        share_vocabularies()
        load_each_alone()
        sweep_leftovers(logs_of_ray())
        self._fronts, self._few = None, Few()
        if self._front_count > 1:
            self.forks = self.forks or ForkServer()
            self._fronts = Fronts(self._front_count, self.forks, self._few)
        try:
            with collector_paused():
                await super().start()  # type: ignore[no-untyped-call]  # Ray's
        except Exception as error:
            # A child process that failed wrote its reason into this replica's log, nowhere else.
            if (reason := _last_child_error(self.clock)) is None:
                raise
            raise SetupError(reason) from error
        app = await self._meet_core()
        #: Rows whose adapters vLLM loads: if it dies, one of them may be the reason.
        self._loading: set[_Row] = set()
        require_endpoints(os.environ, self._openai.endpoints)
        self._rules = rules_from(os.environ)
        register_media_connector(self._rules.media.limits)
        self._grammars = GrammarGate(
            self._rules.limits, lambda: tokenizer_description(self._client.vllm_config)
        )
        self._entrance = Entrance(
            _capacity(self._client.vllm_config),
            goals=_goals(),
            yielding=_yielding(),
            few=self._few,
        )
        self._gpus = _gpus(self._client.vllm_config)
        self._answers = Answers[FrontGoneError | GivenBackError | None](
            max_bytes=_KEPT_BYTES, seconds=_KEPT_SECONDS
        )
        #: The rows that run.
        self._guests: dict[_Row, Guest] = {}
        self._is_hung = False
        self._progress = Progress(float(os.environ[HANG_SECONDS_VARIABLE]))
        self._meter = CoreMeter()
        #: How many replicas the batches need, and until when that holds.
        self._needed = self._needed_until = 0.0
        keep_environment()
        await self._stand_before_core()
        self._live = LiveCalls(
            self._client,
            app,
            self._entrance,
            self._rules,
            self._refused_live,
            shelf=self._shelf,
        )
        self._live_door = LiveDoor(self._live)
        self._door = await _opened_door(self._live_door)
        self._drain = Drain(
            self._entrance, self._live, seconds=float(os.environ[DRAIN_SECONDS_VARIABLE])
        )
        before_stop(self._stop)
        self.core_life = CoreLife(is_only_one=self._model.max_replicas == 1)
        self._start_seconds = time.monotonic() - began_at
        self._healing, self._collecting = map(asyncio.create_task, (self._heal(), collect_seldom()))
        prepare_to_serve()
        self.clock.end("server")

    async def _meet_core(self) -> Any:
        """Make what depends on the core that has started; returns vLLM's app."""
        self.clock.divide_core()
        engine: Any = self.engine
        self._client = engine._engine_client  # noqa: SLF001  # Ray has no public way
        app = await engine.build_asgi_app()
        self._openai = OpenAILayer(app)
        self._shelf = _shelf(self._model, self._client, app)
        self._unloaded = answers_of_unloaded(app)
        config = self._client.vllm_config
        self._gives_vectors = config.model_config.runner_type == "pooling"
        self._tries_grammars = not self._gives_vectors and needs_trials(config)
        self._group_seconds = VECTORS_GROUP_SECONDS if self._gives_vectors else GROUP_SECONDS
        return app

    async def _stand_before_core(self) -> None:
        """From here on, what goes to the core and comes from it passes the queue and the seats."""
        gather_sequences(self._client)
        attend(self._client.engine_core, self._entrance, self._progress, self._meter)
        refuse_killers(self._client)
        self.clock.end("server")
        if self._fronts is not None:
            engine: Any = self.engine
            await self._fronts.connect(self._client, engine._vllm_args)  # noqa: SLF001  # as above
            self.clock.end("fronts")
        stop_statistics(self._client)

    async def _heal(self) -> None:
        """Have another core in place of each that dies, as long as that helps."""
        try:
            await self._heal_until_hopeless()
        finally:
            self.core_life.end()

    async def _heal_until_hopeless(self) -> None:
        while True:
            watching = asyncio.create_task(self._kill_when_hung())
            # It ends when the core does.
            await asyncio.wait([self._client.output_handler])
            watching.cancel()
            has_answered = self.clock.has_answered
            if not self._may_restart(has_answered=has_answered):
                break
            try:
                # A core that hangs while it starts would keep its callers waiting for ever.
                async with asyncio.timeout(_STARTS * self._start_seconds + _DEATH_SECONDS):
                    await self._restart_core()
            except Exception as error:  # noqa: BLE001  # whatever it is, a new replica may help
                reason = _last_child_error(self.clock) or type(error).__name__
                log.error("engine.not_restarted", reason=reason)  # noqa: TRY400  # as it says
                break

    def _may_restart(self, *, has_answered: bool) -> bool:
        """Whether the core that has died gets a successor here, not in another replica.

        Where Ray's workers are part of the engine, they have died with it.
        """
        is_kept = self._in_core and not self._drain.has_begun
        return is_kept and self.core_life.may_restart(has_answered=has_answered)

    async def _restart_core(self) -> None:
        """Start another core; what stands before it stays. Raises what prevents it."""
        log.warning("engine.restarts", was_hung=self._is_hung)
        self.clock.begin_again()
        # Their rows are in no other core, and must not take its life for that of their own.
        await self.core_life.end_calls(_DEATH_SECONDS)
        await self._live.end_dead(_LAST_WORD_SECONDS)
        async with asyncio.timeout(_DEATH_SECONDS):
            while self._entrance.rows:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(_LOOK_SECONDS)
        before, engine = self._client, self.engine
        if self._fronts is not None:
            self._fronts.end()
        if self._shelf is not None:
            await self._shelf.close()
        before.shutdown()
        await engine.restart()  # type: ignore[union-attr]  # `adapted_engine_class` has it
        app = await self._meet_core()
        self._guests.clear()
        self._loading.clear()
        self._is_hung = False
        self._progress.note()
        self._entrance.note(0.0, ())
        await self._stand_before_core()
        self._live.reconnect(self._client, app, self._shelf)
        self.clock.end("server")
        self.core_life.begin()
        log.info("engine.restarted", seconds=sum(self.clock.start.last_restart_stages.values()))

    async def check_health(self) -> None:
        """Raise when Serve is to start another replica."""
        self.core_life.require_hope()
        # It may have died a moment ago.
        if self.core_life.is_coming or self._client.errored:
            return
        await super().check_health()

    def _get_default_engine_class(self) -> type[Any]:
        return adapted_engine_class(
            super()._get_default_engine_class(),
            self.clock,
            in_core=self._in_core,
            forks=self.forks,
            fronts=self._front_count,
        )

    @while_core_lives
    async def run_lines(
        self,
        lines: Sequence[bytes],
        order: Sequence[Work],
        wanted: Collection[str],
    ) -> AsyncGenerator[Results, None]:
        """Answer lines `{"custom_id", "method", "url", "body"[, "request_id"]}`, as they are done.

        `order` has a work for each line: what decides when it enters vLLM. Lines that are withdrawn
        have no result, nor have those of batches that are not among the `wanted`. Raises
        EngineGoneError when the engine died while lines without a result were in it, and
        EngineYieldsError when those without one are to go to another replica.
        """
        if self._client.errored or self._drain.has_begun:
            # These lines never reached the engine, so they cannot have killed it.
            raise EngineUnavailableError("the engine is about to stop or restart")
        is_small = any(map(self._entrance.is_small, order))
        hurry = self._few.hurry(stops=self._gives_vectors) if is_small else nullcontext()
        with hurry:
            async with aclosing(self._run_rows(lines, order, wanted)) as groups:
                async for results in groups:
                    yield results

    async def _run_rows(
        self, lines: Sequence[bytes], order: Sequence[Work], wanted: Collection[str]
    ) -> AsyncGenerator[Results, None]:
        rows = [_row(line, work) for line, work in zip(lines, order, strict=True)]
        left = set(range(len(rows)))
        has_yielded = False
        runs = await self._begin(rows, lines, order, wanted)
        async with aclosing(in_groups(runs, seconds=self._group_seconds)) as groups:
            async for group in groups:
                # vLLM answers 500 for every row of a dead engine. Those are not results.
                ended = [
                    (position, result) for position, result in group if isinstance(result, tuple)
                ]
                results = [
                    (position, result)
                    for position, result in ended
                    if result[0] < SERVER_ERROR or not self._client.errored
                ]
                left.difference_update(position for position, _ in results)
                if results:
                    yield results
                if len(results) < len(ended):
                    raise self._death([one for one in sorted(left) if self._was_seated(rows[one])])
                has_yielded |= any(isinstance(one, GivenBackError) for _, one in group)
                lost = [position for position, one in group if isinstance(one, FrontGoneError)]
                if lost:
                    raise EngineGoneError("the front died while it had these lines", lost)
        if left and self._drain.has_begun:
            raise EngineUnavailableError("the replica stops, and gives these lines back")
        if has_yielded:
            raise EngineYieldsError("people have the replica", _replica_id())

    async def withdraw(self, batch_id: str) -> None:
        """Let no line of the batch enter vLLM that is not there yet."""
        self.core_life.withdraw(batch_id)
        self._entrance.withdraw(batch_id)

    async def know_free(self, replicas: int) -> None:
        """Know how many other replicas live calls leave to batches."""
        self._entrance.know_free(replicas)

    async def expect_small(self) -> None:
        """Make way for rows of a small batch of vectors that are on their way."""
        self._few.expect()

    async def complete(self, batch_id: str) -> None:
        """Know that no line of the batch comes after those that are here."""
        self._entrance.complete(batch_id)

    async def uses(self) -> tuple[float, ...]:
        """The monotonic clock, and the engine's seconds up to then as `Uses` has them."""
        now = time.monotonic()
        return now, *self._entrance.uses(now)

    async def numbers(self) -> ReplicaNumbers:
        """What this replica has counted for the operators' metrics."""
        clock = time.monotonic()
        uses = self._entrance.uses(clock)
        lost, live, idle = (
            round(1_000_000 * self._gpus * one) for one in (uses.lost, uses.live, uses.idle)
        )
        return ReplicaNumbers(
            replica=_replica_id(),
            clock=clock,
            live_micros=live,
            lost_micros=lost,
            idle_micros=idle,
            **self._meter.numbers._asdict(),
            start=self.clock.start,
            batches=self._entrance.rows_of_batches(),
        )

    async def door(self) -> Door | None:
        """Where this replica takes live calls; None if it takes none."""
        is_away = self._client.errored or self._drain.has_begun
        if self._door is None or is_away:
            return None
        return structs.replace(
            self._door,
            seats=self._entrance.live_seats,
            has_batches=self._entrance.has_batches,
            is_for_people=self._entrance.is_for_people,
        )

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve's autoscaling is told besides the calls that it counts itself."""
        told = {LIVE_METRIC: self._live.running / self._entrance.live_places}
        if time.monotonic() < self._needed_until:
            told[NEEDED_METRIC] = self._needed
        return told

    async def expect(self, replicas: float) -> None:
        """Know how many replicas the batches need; it holds until it is told again, or old."""
        self._needed, self._needed_until = replicas, time.monotonic() + _NEEDED_SECONDS

    async def unfinished(self) -> int:
        """How many sequences are in vLLM right now."""
        return self._entrance.seated

    async def _stop(self) -> None:
        """Let go of what is here: Serve stops this replica as soon as its calls have ended."""
        self._collecting.cancel()
        if self.core_life.is_coming:
            # Who waits for it has given no core its rows.
            self._healing.cancel()
            self.core_life.end()
        await self._drain.run()
        await self._live_door.close()

    def _was_seated(self, row: _Row) -> bool:
        """Whether vLLM had the row when it died."""
        guest = self._guests.get(row)
        return row in self._loading or (guest is not None and guest.had_seat)

    def _death(self, positions: Sequence[int]) -> EngineGoneError:
        if self._is_hung:
            return EngineHungError("the engine hung while these lines were in it", positions)
        return EngineGoneError("the engine died while these lines were in it", positions)

    async def _begin(
        self,
        rows: Sequence[_Row],
        lines: Sequence[bytes],
        order: Sequence[Work],
        wanted: Collection[str],
    ) -> list[_Run]:
        """Begin rows; those that are not wanted have ended.

        Those of small batches begin together, and all others a few at a time.
        """
        runs: list[_Run] = []
        group = self._entrance.group_of(work for work in order if work.batch_id in wanted)
        are_small = [self._entrance.is_small(work) for work in order]
        # Others that come with rows of small batches would keep these waiting.
        has_small = any(are_small)
        try:
            for row, line, work, is_small in zip(rows, lines, order, are_small, strict=True):
                is_wanted = work.batch_id in wanted
                running = partial(self._run, row, line, work, group if is_small else None)
                runs.append(self._answers.ask(row, running) if is_wanted else _no_result())
                if len(runs) % self._few.count == 0 and not is_small:
                    await (asyncio.sleep(0) if has_small else self._few.turn())
        except asyncio.CancelledError:
            for run in runs:
                run.cancel()
            raise
        return runs

    async def _run(
        self, row: _Row, line: bytes, work: Work, group: Group | None
    ) -> Result | FrontGoneError | GivenBackError | None:
        try:
            return await self._run_line(row, line, work, group)
        except (FrontGoneError, GivenBackError) as error:
            return error
        except WithdrawnError:
            return None

    async def _run_line(self, row: _Row, line: bytes, work: Work, group: Group | None) -> Result:
        stays_here = self._fronts is None or self._is_quick(line, work)
        if not stays_here and not self._reads(line):
            return await self._enter_and_answer(row, self._in_front(line, work), work, group)
        request = request_of(line, self._rules)
        if not isinstance(request, Request):
            return request
        body = request.body
        if (refusal_of_body := await self._refused_here(body, work.tenant)) is not None:
            return refusal_of_body
        async with self._with_adapter(row, body, work) as refusal_of_adapter:
            if refusal_of_adapter is not None:
                return refusal_of_adapter
            answering = (
                partial(self._answer_here, request) if stays_here else self._in_front(line, work)
            )
            return await self._enter_and_answer(row, answering, work, group)

    async def _enter_and_answer(
        self,
        row: _Row,
        answering: Callable[[], Awaitable[RowAnswer]],
        work: Work,
        group: Group | None,
    ) -> Result:
        async with self._entrance.entered(work, group) as guest:
            self._guests[row] = guest
            began_at = time.monotonic()
            try:
                status, body, usage = await answering()
            finally:
                # The row may run again already while this run of it is being cancelled.
                if not self._client.errored and self._guests.get(row) is guest:
                    del self._guests[row]
            if usage is not None:
                # Others may be answered before they are computed.
                self.clock.note_row(began_at)
                self._entrance.learn(guest, usage)
            seconds = self._gpus * self._entrance.settle(guest)
            return status, body, round(1_000_000 * seconds)

    def _is_quick(self, line: bytes, work: Work) -> bool:
        """Whether a row is answered here, although there are fronts: those have others' rows.

        So are short rows of a small batch of vectors that is alone. Several would take turns here.
        """
        is_alone = self._entrance.is_small(work) and self._few.hurries == 1
        return self._gives_vectors and is_alone and len(line) <= _QUICK_BYTES

    def _in_front(self, line: bytes, work: Work) -> Callable[[], Awaitable[RowAnswer]]:
        assert self._fronts is not None  # noqa: S101  # who asks has looked
        return partial(self._fronts.answer, line, is_first=self._entrance.is_small(work))

    async def _answer_here(self, request: Request) -> RowAnswer:
        """Let vLLM's front in this process answer it."""
        answer = await self._openai.answer(*request)
        _require_wanted()
        if self._client.errored:
            return RowAnswer(*answer)
        return answer_of(request, answer, self._rules)

    @asynccontextmanager
    async def _with_adapter(self, row: _Row, body: Any, work: Work) -> AsyncIterator[Answer | None]:
        """Keep the adapter that a row names; yields the answer if it may not be used."""
        name = body.get("model") if isinstance(body, dict) else None
        if not isinstance(name, str) or adapter_named(name) is None:
            yield None
        elif self._shelf is None or work.adapter is None:
            yield unknown(name)
        else:
            async with self._shelf.used(
                work.tenant, name, partial(self._archive, row, work.adapter)
            ) as refused:
                if not self._client.errored:
                    self._loading.discard(row)
                yield refused

    async def _archive(self, row: _Row, reference: Any) -> bytes:
        """The file of a row's adapter. Raises EngineUnavailableError if its owner is gone."""
        try:
            archive: bytes = await reference
        except RayError as error:
            raise EngineUnavailableError("The file of an adapter did not come.") from error
        self._loading.add(row)
        return archive

    async def adapters(self) -> list[tuple[str, str]]:
        """Tenant and name of each tenant's adapter that is loaded."""
        return self._shelf.names if self._shelf else []

    async def forget_adapters(self, names: Sequence[str]) -> None:
        """Unload adapters that are deleted."""
        if self._shelf:
            await self._shelf.forget(names)

    async def _refused_live(self, url: str, body: Any, tenant: str) -> Answer | None:
        found = refused(self._rules, url, body, is_live=True)
        return found or await self._refused_here(body, tenant)

    async def _refused_here(self, body: Any, tenant: str) -> Answer | None:
        """What the replica alone knows against a request that keeps to the rules."""
        if not isinstance(body, dict):
            return None
        if (found := self._unloaded.get(str(body.get("model")))) is not None:
            return found
        return (
            await self._grammars.refused(tenant, grammars(body)) if self._tries_grammars else None
        )

    def _reads(self, line: bytes) -> bool:
        """Whether something of a row has to be known here before a front has it."""
        if self._shelf is not None or self._unloaded:
            return True
        return self._tries_grammars and may_have_grammars(line)

    def _unfinished(self) -> int:
        count: int = self._client.output_processor.get_num_unfinished_requests()
        return count + (self._fronts.unfinished if self._fronts else 0)

    async def _kill_when_hung(self) -> None:
        """Kill an engine that hangs, so that its calls end and another one starts."""
        client = self._client
        while not self._progress.has_stalled(self._unfinished()):  # noqa: ASYNC110  # vLLM tells nothing
            await asyncio.sleep(_CHECK_SECONDS)
        log.error("engine.hung", seconds=self._progress.seconds, rows=self._unfinished())
        self._is_hung = True
        # The fronts are not the reason, and whoever asks shall hear that the engine hung.
        spared = self._fronts.pids if self._fronts else set()
        if self.forks is not None:
            spared.add(self.forks.pid)
        for process in psutil.Process().children(recursive=True):
            if process.pid not in spared:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        await asyncio.sleep(_DEATH_SECONDS)
        if not client.errored:
            os._exit(1)


def _row(line: bytes, work: Work) -> _Row:
    digest = hashlib.blake2b(line, digest_size=16).digest()
    return work.batch_id, work.number, digest, work.attempt


def _no_result() -> _Run:
    result: _Run = asyncio.get_running_loop().create_future()
    result.set_result(None)
    return result


def _require_wanted() -> None:
    """Raise CancelledError if the running task is to end: vLLM makes an answer, 400, of that."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _opened_door(door: LiveDoor) -> Door | None:
    """The door, if the model takes live calls."""
    if not (ports := os.environ.get(LIVE_PORTS_VARIABLE)):
        return None
    first, last = ports.split("-")
    host: str = get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's
    return await door.open(_replica_id(), host, (int(first), int(last)))


def _replica_id() -> str:
    return serve.get_replica_context().replica_id.unique_id


def _shelf(model: Model, client: Any, app: Any) -> AdapterShelf | None:
    """Where adapters of tenants are, if the model takes any."""
    limits = model.adapter_limits
    if limits is None or model.tenant_lora is None:
        return None
    models = app.state.openai_serving_models
    return AdapterShelf(VllmLoader(client, models), limits, kept=model.tenant_lora.kept)


def _goals() -> Goals | None:
    """What live calls are to have; None if the model takes none."""
    if not (given := os.environ.get(LIVE_GOALS_VARIABLE)):
        return None
    ttft, tpot = (float(milliseconds) / 1000 for milliseconds in given.split())
    return Goals(ttft, tpot)


def _yielding() -> Yielding:
    # An older version has deployed engines without it.
    reserve, *near = map(float, os.environ.get(LIVE_YIELDING_VARIABLE, "0.5").split())
    return Yielding(reserve, near[0] if near else None)


def _capacity(vllm_config: Any) -> Capacity:
    spare_seats = int(os.environ[SPARE_SEATS_VARIABLE])
    live_seats = int(os.environ.get(LIVE_SEATS_VARIABLE, "0"))
    seats = vllm_config.scheduler_config.max_num_seqs - spare_seats - live_seats
    is_one_step = vllm_config.model_config.runner_type == "pooling"
    cache = vllm_config.cache_config
    cores = vllm_config.parallel_config.data_parallel_size
    return Capacity(
        seats=cores * seats,
        spare_seats=cores * spare_seats,
        spare_kv=float(os.environ[SPARE_KV_VARIABLE]),
        live_seats=cores * live_seats,
        kv_tokens=0 if is_one_step else cores * (cache.num_gpu_blocks or 0) * cache.block_size,
        is_one_step=is_one_step,
        step_tokens=cores * vllm_config.scheduler_config.max_num_batched_tokens,
    )


def _gpus(vllm_config: Any) -> float:
    """How many GPUs compute a step together, or which part of one; 1 on a processor."""
    parallel = vllm_config.parallel_config
    ways = (parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    share = float(os.environ.get(SHARE_VARIABLE, "1"))
    workers: int = math.prod((*ways, parallel.data_parallel_size))
    return share * workers


def _last_child_error(clock: StageClock) -> str | None:
    """The last exception that vLLM's child processes wrote into the replica's own log files."""
    last = None
    for text in clock.written():
        for line in text.splitlines():
            found = re.search(r"^\((?:EngineCore|Worker)\b.*?\] ((?:\w+\.)*\w*Error: .*)", line)
            last = found[1] if found else last
    return last
